"""MXNet's files read without mxnet."""
