"""RecordIO, MXNet's record format: reader, writer, packer, verifier. Works without mxnet."""

from __future__ import annotations

from typing import Any

from gluontune import lazy

__all__ = [
    "DamagedRecordError",
    "IRHeader",
    "MXIndexedRecordIO",
    "MXRecordIO",
    "PackReport",
    "RecordReader",
    "RecordWriter",
    "RepairReport",
    "VerifyReport",
    "boxes_of",
    "boxes_to_label",
    "compare_formats",
    "pack",
    "pixels_to_raw",
    "raw_to_pixels",
    "repair",
    "verify",
]

_HOMES = {
    "DamagedRecordError": "layout",
    "IRHeader": "layout",
    "MXIndexedRecordIO": "dropin",
    "MXRecordIO": "dropin",
    "PackReport": "packer",
    "RecordReader": "reader",
    "RecordWriter": "writer",
    "RepairReport": "repairer",
    "VerifyReport": "verifier",
    "boxes_of": "detection",
    "boxes_to_label": "detection",
    "compare_formats": "formats",
    "pack": "packer",
    "pixels_to_raw": "transform",
    "raw_to_pixels": "transform",
    "repair": "repairer",
    "verify": "verifier",
}


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
