"""Export to ONNX, and the proof that what was exported computes the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.convert.onnx.check import Agreement as Agreement
    from gluontune.convert.onnx.check import agreement as agreement
    from gluontune.convert.onnx.check import check_outputs as check_outputs
    from gluontune.convert.onnx.convert import Exported as Exported
    from gluontune.convert.onnx.convert import UnsupportedOperator as UnsupportedOperator
    from gluontune.convert.onnx.convert import to_onnx as to_onnx
    from gluontune.convert.onnx.quantize import quantize_onnx as quantize_onnx
    from gluontune.convert.onnx.zoo import ZOO as ZOO
    from gluontune.convert.onnx.zoo import export_zoo as export_zoo
    from gluontune.convert.parameters import set_parameters as set_parameters
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
