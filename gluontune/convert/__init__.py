"""Nets in other forms: their graph, PyTorch modules, PyTorch projects, ONNX."""
