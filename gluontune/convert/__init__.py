"""What takes a net elsewhere: its graph, PyTorch modules, PyTorch projects, ONNX."""
