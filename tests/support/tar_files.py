"""Archives for the tests of what is packed from them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

__all__ = ["write_tar"]


def write_tar(path: Path, *members: tuple[str, bytes]) -> Path:
    """A ``.tar`` at ``path`` of ``members``: (name, bytes)."""
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            facts = tarfile.TarInfo(name)
            facts.size = len(data)
            tar.addfile(facts, io.BytesIO(data))
    return path
