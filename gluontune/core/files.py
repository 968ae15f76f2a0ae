"""Files are written beside their place and then renamed, so that nothing is lost; archives are read within bounds; what
this gluontune wrote can be sealed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar, Union

from gluontune.core.reading import explain_os_error, explained, open_regular, parse_json, read_text

PathLike = Union[str, "os.PathLike[str]"]


def cache_dir() -> Path:
    """The folder of data sets and downloads: ``$GLUONTUNE_DATA``, else the user's cache folder."""
    chosen = os.environ.get("GLUONTUNE_DATA")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "gluontune"


def begin_writing_back(handle: int) -> None:
    """Start writing a file to the disk, without waiting, so that a later fsync is short; Linux alone has the call."""
    if sys.platform == "linux":
        begin, whole = ctypes.CDLL(None).sync_file_range, (ctypes.c_int64(0), ctypes.c_int64(0))
        begin(handle, *whole, ctypes.c_uint(2))  # SYNC_FILE_RANGE_WRITE


def sync_together(streams: Sequence[IO[Any]]) -> None:
    """Flush and fsync all ``streams`` at the same time, which takes the disk fewer turns."""
    from concurrent.futures import ThreadPoolExecutor

    for stream in streams:
        stream.flush()
    with ThreadPoolExecutor(len(streams)) as threads:
        list(threads.map(lambda stream: os.fsync(stream.fileno()), streams))


def read_npz(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arrays of a ``.npz`` file from an untrusted source; nothing is unpickled.

    Raises:
        OSError: it cannot be opened. ValueError: it is damaged, no ``.npz``, or larger unpacked than 16 MiB and a
            hundred times the file.
    """
    with os.fdopen(open_regular(path), "rb") as stream:
        return read_arrays(stream)


def read_arrays(stream: IO[bytes]) -> dict[str, Any]:
    """The same for an open file, from its position to its end; raises ValueError as :func:`read_npz`."""
    import zipfile

    import numpy as np

    start = stream.tell()
    try:
        with zipfile.ZipFile(stream) as entries:
            size = sum(entry.file_size for entry in entries.infolist())
        if size > max(1 << 24, 100 * os.fstat(stream.fileno()).st_size):
            raise ValueError(f"it unpacks to {size:,} bytes, more than 100 times its size")
        stream.seek(start)
        with np.load(stream, allow_pickle=False) as content:
            return dict(content.items())
    except ValueError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds on damaged bytes
        raise ValueError(str(error) or type(error).__name__) from error


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a file beside ``path``; it takes the place of ``path`` only if the block ends well.

    The file belongs to the process that opened it: writes of a forked one are lost.

    Args:
        path: the final place; its folder is made if it is missing. mode: ``"wb"`` or ``"w"``.

    Raises:
        GluontuneError: the folder is read-only, the disk full, … (names the path and the way out).
    """
    final, opener = Path(path), os.getpid()
    temporary = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{final.name}.", suffix=".part", dir=final.parent)
        encoding = None if "b" in mode else "utf-8"
        escaped = None if "b" in mode else "backslashreplace"  # a path need not be UTF-8
        with os.fdopen(handle, mode, encoding=encoding, errors=escaped) as stream:
            _written_here.add(stream)
            yield stream
            if os.getpid() != opener:
                return
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, final)
        temporary = None
    except OSError as error:
        raise explain_os_error(final, error) from error
    finally:
        if temporary is not None and os.getpid() == opener:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


_written_here: weakref.WeakSet[IO[Any]] = weakref.WeakSet()


def _let_go() -> None:
    """Redirects a forked process's copies of unwritten bytes to the null device."""
    for stream in [stream for stream in _written_here if not stream.closed]:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno(), inheritable=False)
        os.close(nowhere)
    _written_here.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def write_json(path: str | os.PathLike[str], document: Any) -> None:
    """Write ``document`` as JSON, atomically. NaN and infinity are refused: they are not JSON."""
    text = json.dumps(document, indent=2, allow_nan=False)
    with atomic_write(path, "w") as stream:
        stream.write(text + "\n")


def set_aside(path: str | os.PathLike[str] | None) -> None:
    """Rename an earlier document at ``path`` to ``NAME.previous.json`` (or its ending)."""
    if path is not None and Path(path).exists():
        Path(path).replace(Path(path).with_name(f"{Path(path).stem}.previous{Path(path).suffix}"))


def writable_folder(path: str | os.PathLike[str]) -> Path:
    """Make ``path`` if it is missing and prove, before long work, that a file can be written there."""
    folder = Path(path)
    probe = folder / f".gluontune-probe-{os.getpid()}"
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    return folder


_KEY = "grader.key"  # in the cache folder, which no graded script of the course can read


def write_sealed(path: Path, document: dict[str, Any]) -> None:
    """Write ``document`` with its seal; without a stored key the seal is empty, and reading rejects it."""
    write_json(path, {**document, "seal": _seal(document)})


def read_sealed(path: Path) -> dict[str, Any] | None:
    """The unchanged document of :func:`write_sealed`, or None: a file that is damaged, edited or from elsewhere."""
    import hmac

    try:
        document = parse_json(read_text(path))
        seal = document.pop("seal", None)
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    mine = _seal(document)
    return document if mine and isinstance(seal, str) and hmac.compare_digest(mine, seal) else None


def _seal(document: dict[str, Any]) -> str:
    import hashlib
    import hmac

    key = _key()
    return hmac.new(key, json.dumps(document, sort_keys=True).encode(), hashlib.sha256).hexdigest() if key else ""


def _key() -> bytes:
    """The key of this user on this machine, drawn at first use; empty if it cannot be stored."""
    path = cache_dir() / _KEY
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(os.urandom(32))
        found = path.lstat()
        if found.st_uid == os.geteuid() and not found.st_mode & 0o077 and (key := path.read_bytes()):
            return key if len(key) == 32 else b""
    return b""


T = TypeVar("T", bound="Closing")


class Closing:
    """Something with a ``close``, which a ``with`` block calls at its end."""

    def close(self) -> None:
        """Release what is held."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
