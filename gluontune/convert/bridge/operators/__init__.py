"""What each of MXNet's operators means in torch, a file a family. Importing this fills the registry."""

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
