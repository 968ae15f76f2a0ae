"""What makes and checks this repository, and no user calls: run from its root, as ``python -m tools.NAME``."""
