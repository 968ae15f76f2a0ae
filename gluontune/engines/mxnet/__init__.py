"""The training process on MXNet."""
