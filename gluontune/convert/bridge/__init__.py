"""A graph of MXNet's operators as a PyTorch module, and its weights back."""
