"""A Gluon net as an ONNX file, checked and quantized."""
