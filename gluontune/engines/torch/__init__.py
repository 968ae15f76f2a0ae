"""The training process on PyTorch's engine; it imports no mxnet."""
