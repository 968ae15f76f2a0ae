"""Readers of MXNet's files without mxnet."""
