"""Where the peers' interpreter is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

__all__ = ["PEERS_VARIABLE", "peer_python"]

PEERS_VARIABLE = "GLUONTUNE_PEERS"


def peer_python(folder: Union[str, os.PathLike[str], None] = None) -> Path:
    """The Python of the environment that ``make peers`` makes; the file may not be there.

    Args:
        folder: the environment; None: ``$GLUONTUNE_PEERS``, else ``.peers`` here, else ``.peers`` beside
            the package's own folder (a checkout).

    >>> peer_python("/opt/peers").as_posix()
    '/opt/peers/bin/python'
    """
    chosen = os.fspath(folder) if folder is not None else os.environ.get(PEERS_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute() / "bin" / "python"
    here, checkout = (base / ".peers" / "bin" / "python" for base in (Path.cwd(), _checkout()))
    return here if here.is_file() else checkout


def _checkout() -> Path:
    return Path(__file__).resolve().parents[3]
