from gluontune.convert.onnx.check import Agreement as Agreement, agreement as agreement, check_outputs as check_outputs
from gluontune.convert.onnx.convert import (
    Exported as Exported,
    UnsupportedOperator as UnsupportedOperator,
    to_onnx as to_onnx,
)
from gluontune.convert.onnx.quantize import quantize_onnx as quantize_onnx
from gluontune.convert.onnx.zoo import ZOO as ZOO, export_zoo as export_zoo
from gluontune.convert.parameters import set_parameters as set_parameters
