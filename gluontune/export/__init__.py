"""Export to ONNX, and the proof that what was exported computes the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune import lazy

if TYPE_CHECKING:
    from gluontune.export.check import Agreement as Agreement
    from gluontune.export.check import agreement as agreement
    from gluontune.export.check import check_outputs as check_outputs
    from gluontune.export.convert import Exported as Exported
    from gluontune.export.convert import UnsupportedOperator as UnsupportedOperator
    from gluontune.export.convert import to_onnx as to_onnx
    from gluontune.export.parameters import set_parameters as set_parameters
    from gluontune.export.quantize import quantize_onnx as quantize_onnx
    from gluontune.export.zoo import ZOO as ZOO
    from gluontune.export.zoo import export_zoo as export_zoo
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
