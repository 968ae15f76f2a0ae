"""The commands of ``python -m benchmarks``, a module each."""
