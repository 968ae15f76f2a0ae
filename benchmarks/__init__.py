"""Harnesses of gluontune's own figures, and the published documents that they made; ``python -m benchmarks``.

What a user compares on his own machine is ``gluontune bench``; what is here is run from a clone, and no wheel has it.
"""
