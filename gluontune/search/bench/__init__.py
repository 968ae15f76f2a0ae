"""Benchmarks for users' machines: ``gluontune bench`` and the peers of ``gluontune tta``."""
