"""What a training process tells of itself once it is built."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from gluontune import __version__
from gluontune.errors import GluontuneError

if TYPE_CHECKING:
    from gluontune.train.session import Session

__all__ = ["common", "site"]

_MARKED = 16  # images that are compared between ranks


def site(session: Session) -> dict[str, Any]:
    """Devices, data and rewrites, for the ladder."""
    shape, steady = session.feed.image_shape, None
    if shape is None:
        steady = session.feed.train.steady_bytes()
    return {
        "device": session.device,
        "gpus": session.mx.context.num_gpus(),
        "splits": session.job.dataset is not None,
        "image_bytes": shape[0] * shape[1] * shape[2] if shape else steady,
        "steady": steady is not None,
        "rewrites": session.rewrites,
        "step": session.kind.name,
        "recurrent": session.job.begin is not None,
        "metric": {"name": session.score.name, "mode": session.score.mode},
    }


def common(session: Session) -> dict[str, Any]:
    """What must be alike on all ranks: versions, data, batches in an epoch."""
    versions = {"gluontune": __version__, "mxnet": session.mx.__version__, "numpy": np.__version__}
    return {"versions": versions, "data": _data_mark(session.feed), "batches_per_epoch": session.batches_per_epoch}


def _data_mark(feed: Any) -> str:
    """What tells data sets apart: their length, a checksum of all labels in order, and one of some images."""
    labels, split = getattr(feed.train, "labels", None), getattr(feed.train, "split", None)
    mark = f"{feed.num_train} images"
    if labels is not None:
        mark += f", labels {zlib.crc32(labels.tobytes()):08x}"
    if split is not None and len(split):
        crc = 0
        for place in np.linspace(0, len(split) - 1, _MARKED).astype(int):
            try:
                crc = zlib.crc32(split.read(int(place)), crc)
            except GluontuneError:  # a damaged image is the loader's to tell
                crc = zlib.crc32(b"damaged", crc)
        mark += f", {_MARKED} of the images {crc:08x}"
    return mark
