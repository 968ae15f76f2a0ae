"""Export to ONNX, and the proof that what was exported computes the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.convert.graph.params import set_parameters as set_parameters
    from gluontune.convert.onnx.check import (
        ZOO as ZOO,
        Agreement as Agreement,
        agreement as agreement,
        check_outputs as check_outputs,
        export_zoo as export_zoo,
    )
    from gluontune.convert.onnx.convert import (
        Exported as Exported,
        UnsupportedOperator as UnsupportedOperator,
        to_onnx as to_onnx,
    )
    from gluontune.convert.onnx.quantize import quantize_onnx as quantize_onnx
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
