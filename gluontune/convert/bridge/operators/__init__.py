"""MXNet's operators in torch, a file for each family. The import fills the registry."""

from gluontune.convert.bridge.operators import (  # noqa: F401
    arithmetic,
    creating,
    detection,
    neural,
    recurrent,
    reducing,
    shaping,
    vision,
)
