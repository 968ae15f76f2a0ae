"""What a training process tells of itself once it is built."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from gluontune import __version__

__all__ = ["site"]


def site(session: Any) -> dict[str, Any]:
    """Devices, data and rewrites for the ladder; versions and data, which must be alike on all ranks."""
    shape = session.feed.image_shape
    versions = {"gluontune": __version__, "mxnet": session.mx.__version__, "numpy": np.__version__}
    return {
        "device": session.device,
        "gpus": session.mx.context.num_gpus(),
        "splits": session.job.dataset is not None,
        "image_bytes": shape[0] * shape[1] * shape[2] if shape else None,
        "rewrites": session.rewrites,
        "versions": versions,
        "data": _data_mark(session.feed),
    }


def _data_mark(feed: Any) -> str:
    """What tells data sets apart: their length and a checksum of all labels in order."""
    labels = getattr(feed.train, "labels", None)
    mark = f", labels {zlib.crc32(labels.tobytes()):08x}" if labels is not None else ""
    return f"{feed.num_train} images{mark}"
