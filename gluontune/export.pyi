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
