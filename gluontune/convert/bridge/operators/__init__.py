"""MXNet's operators in torch, a file for each family. The import fills the registry."""

from gluontune.convert.bridge.operators import (  # noqa: F401
    creating,
    detection,
    drawing,
    elementwise,
    indexing,
    looping,
    matrix,
    neural,
    normalizing,
    numpy_like,
    recurrent,
    reducing,
    shaping,
    vision,
)
