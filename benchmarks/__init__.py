"""Harnesses of gluontune's published figures, and their documents; ``python -m benchmarks``.

Users compare on their machines by ``gluontune bench``; these harnesses run from a clone, and no wheel contains them.
"""
