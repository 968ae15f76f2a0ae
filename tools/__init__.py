"""Tools that make and check this repository: run from its root, as ``python -m tools.NAME``."""
