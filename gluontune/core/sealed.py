"""Sealed JSON documents: what this user's gluontune wrote on this machine, unchanged.

Whatever else a file holds is no document: damaged, edited, of another user or from elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Any

from gluontune.core.files import cache_dir, write_json
from gluontune.core.reading import parse_json, read_text

_KEY = "grader.key"  # in the cache folder, which no graded script of the course can read


def write_sealed(path: Path, document: dict[str, Any]) -> None:
    """Write ``document`` with its seal; without a stored key the seal is empty, and reading rejects it."""
    write_json(path, {**document, "seal": _seal(document)})


def read_sealed(path: Path) -> dict[str, Any] | None:
    """The unchanged document of :func:`write_sealed`, or None."""
    try:
        document = parse_json(read_text(path))
        seal = document.pop("seal", None)
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    mine = _seal(document)
    return document if mine and isinstance(seal, str) and hmac.compare_digest(mine, seal) else None


def _seal(document: dict[str, Any]) -> str:
    key = _key()
    return hmac.new(key, json.dumps(document, sort_keys=True).encode(), hashlib.sha256).hexdigest() if key else ""


def _key() -> bytes:
    """The key of this user on this machine, drawn at first use; empty if it cannot be stored."""
    path = cache_dir() / _KEY
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(secrets.token_bytes(32))
        found = path.lstat()
        if found.st_uid == os.geteuid() and not found.st_mode & 0o077 and (key := path.read_bytes()):
            return key if len(key) == 32 else b""
    return b""
