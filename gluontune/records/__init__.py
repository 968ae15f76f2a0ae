"""RecordIO, MXNet's record format: reader, writer, packer, verifier. Works without mxnet."""

from __future__ import annotations

from typing import Any

from gluontune.registry import resolve

__all__ = [
    "DamagedRecordError",
    "IRHeader",
    "PackReport",
    "RecordReader",
    "RecordWriter",
    "RepairReport",
    "VerifyReport",
    "compare_formats",
    "pack",
    "pixels_to_raw",
    "raw_to_pixels",
    "repair",
    "verify",
]

_WHERE = {
    "DamagedRecordError": "layout",
    "IRHeader": "layout",
    "PackReport": "packer",
    "RecordReader": "reader",
    "RecordWriter": "writer",
    "RepairReport": "repairer",
    "VerifyReport": "verifier",
    "compare_formats": "formats",
    "pack": "packer",
    "pixels_to_raw": "transform",
    "raw_to_pixels": "transform",
    "repair": "repairer",
    "verify": "verifier",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = resolve(f"{__name__}.{_WHERE[name]}:{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
