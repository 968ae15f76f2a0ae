"""The shape rules, by kind of operator; importing this registers all."""

from gluontune.graph.rules import cutting, elementwise, indexing, layers, matrices, moving, reducing, vision

__all__ = ["cutting", "elementwise", "indexing", "layers", "matrices", "moving", "reducing", "vision"]
