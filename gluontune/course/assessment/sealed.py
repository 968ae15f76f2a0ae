"""Documents that this user has measured on this machine, sealed with a key of theirs: a shipped one is not believed."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Any

from gluontune.files import cache_dir, parse_json, write_json

__all__ = ["read_sealed", "write_sealed"]

_KEY = "grader.key"  # in the cache folder, which no graded script can read


def write_sealed(path: Path, document: dict[str, Any]) -> None:
    """Write ``document`` with its seal; without one where no key can be kept, and then it is not believed again."""
    write_json(path, {**document, "seal": _seal(document)})


def read_sealed(path: Path) -> dict[str, Any] | None:
    """What :func:`write_sealed` wrote here, and nobody has changed since; else None."""
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
        seal = document.pop("seal", None)
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    mine = _seal(document)
    return document if mine and isinstance(seal, str) and hmac.compare_digest(mine, seal) else None


def _seal(document: dict[str, Any]) -> str:
    key = _key()
    return hmac.new(key, json.dumps(document, sort_keys=True).encode(), hashlib.sha256).hexdigest() if key else ""


def _key() -> bytes:
    """The key of this user on this machine, drawn when it is first needed; empty where it cannot be kept."""
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
