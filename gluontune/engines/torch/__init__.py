"""PyTorch's engine: the job's graph, exported by MXNet, in a process without it."""

from __future__ import annotations

from typing import Any

#: The fields of an ``EngineCard``.
CARD: dict[str, Any] = {
    "title": "PyTorch",
    "session": "gluontune.engines.torch.session:session_of",
    "contradictions": (
        (("backend", "loader"), lambda r: r.loader == "gluon" and not r.job,
         "Gluon's DataLoader needs mxnet in the process that trains; use loader='threaded' or 'resident'"),
        (("backend", "engine", "num_devices"),
         lambda r: r.engine not in ("local", "ddp") or (r.engine == "local" and r.num_devices > 1),
         "the torch backend trains in one process (engine='local', num_devices=1) or in several (engine='ddp')"),
        (("backend", "rewrites"), lambda r: bool(r.rewrites),
         "they go around slow operators of MXNet's; use rewrites=[]"),
        (("backend", "stochastic_depth"), lambda r: r.stochastic_depth > 0,
         "which branch is dropped is drawn by MXNet; use stochastic_depth=0"),
    ),
    "meeting": "GLUONTUNE_DDP_MEETING",  # file:// on one machine, tcp:// between several
    "shared": ("GLUONTUNE_EXPORTED_NET",),  # without it, each rank exports for itself
}  # fmt: skip
