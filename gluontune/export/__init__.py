"""Export to ONNX, and the proof that what was exported computes the same."""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "Agreement": "check",
    "Exported": "convert",
    "UnsupportedOperator": "convert",
    "ZOO": "zoo",
    "agreement": "check",
    "check_outputs": "check",
    "export_zoo": "zoo",
    "quantize_onnx": "quantize",
    "set_parameters": "parameters",
    "to_onnx": "convert",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
