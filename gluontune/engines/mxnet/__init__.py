"""MXNet's engine: the job as it is written, by Gluon."""

from __future__ import annotations

from typing import Any

#: The fields of an ``EngineCard``.
CARD: dict[str, Any] = {
    "title": "MXNet",
    "session": "gluontune.engines.mxnet.session:Session",
    "contradictions": (
        (("engine", "backend"), lambda r: r.engine == "ddp",
         "it is PyTorch's; use backend='torch', or engine='shared-memory'"),
        (("dtype", "devices"), lambda r: r.dtype == "float16" and r.devices == "cpu",
         "MXNet has no float16 convolution on a CPU; use dtype='bfloat16' or devices='gpu'"),
        (("dtype", "devices"), lambda r: r.dtype == "bfloat16" and r.devices.startswith("gpu"),
         "MXNet 1.9 has no bfloat16 kernels for a GPU; use dtype='float16' or devices='cpu'"),
    ),
    "commands": ("training", "gradients", "exchange", "individual"),
}  # fmt: skip
