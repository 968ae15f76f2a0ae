"""The checkpoint file and its folder; needs no mxnet.

A checkpoint is one file, ``step-00000512.ckpt``: a line with the format's name and the SHA-256 of the rest, a line of
JSON (recipe, progress, positions), and a zip of numpy arrays (``numpy.savez``). Nothing in it can run code, and
``numpy.load`` reads the arrays after the two lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import atomic_write, read_arrays, writable_folder
from gluontune.core.reading import MOST_JSON, explained, open_regular, parse_json

FORMAT = "gluontune-checkpoint-1"
_NAME = re.compile(r"step-(\d+)\.ckpt")
_LINE = len(FORMAT) + 1 + 64 + 1
_CHUNK = 1 << 20


class DamagedCheckpoint(GluontuneError):
    """A damaged file, or no checkpoint."""


def name_of(step: int) -> str:
    """The file name of the checkpoint after ``step`` steps.

    >>> name_of(512)
    'step-00000512.ckpt'
    """
    return f"step-{step:08d}.ckpt"


class _Hashing:
    """A write-only stream that hashes its data."""

    def __init__(self, stream: IO[bytes]):
        self._stream, self.hash, self.given_up = stream, hashlib.sha256(), False

    def write(self, data: Any) -> int:
        if self.given_up:
            return len(data)
        self.hash.update(data)
        return self._stream.write(data)

    def read(self, size: int = -1) -> bytes:
        raise io.UnsupportedOperation("this stream can only be written to")  # numpy asks for the method

    def flush(self) -> None:
        if not self.given_up:
            self._stream.flush()


def write(path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint beside ``path``, sync it, and rename it into place.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / name_of(3)
    >>> write(path, {"step": 3}, {"weight": np.arange(2.0)})
    >>> header, arrays = read(path)
    >>> header, arrays["weight"].tolist()
    ({'step': 3}, [0.0, 1.0])
    """
    with atomic_write(path) as stream:
        stream.write(f"{FORMAT} {'0' * 64}\n".encode())
        hashing = _Hashing(stream)
        hashing.write(json.dumps(header).encode() + b"\n")
        try:
            np.savez(hashing, **arrays)  # type: ignore[arg-type]
        except BaseException:
            hashing.given_up = True  # its zip file writes an end when it is deleted
            raise
        stream.seek(len(FORMAT) + 1)
        stream.write(hashing.hash.hexdigest().encode())
    with contextlib.suppress(OSError):  # sync the new name, too, if folders can be synced
        folder = os.open(Path(path).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_header(path: str | Path, *, whole: bool = True) -> dict[str, Any]:
    """The header of a checkpoint.

    Args:
        whole: verify the checksum of the whole file.

    Raises:
        DamagedCheckpoint: it is cut off, changed, or not a checkpoint of this version.
    """
    with _opened(path, whole) as (_, header):
        return header


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a checkpoint with a correct checksum. Raises as :func:`read_header`."""
    with _opened(path, True) as (stream, header):
        try:
            return header, read_arrays(stream)
        except ValueError as error:
            raise DamagedCheckpoint(f"{path}: its arrays cannot be read: {error}") from None


def check_same_net(mine: Mapping[str, Any], theirs: Mapping[str, Any], source: str) -> None:
    """Check that the net's parameters (``mine``) and those of ``source`` have the same names and shapes."""
    for name in {**mine, **theirs}:
        here, there = (tuple(w[name].shape) if name in w else "none" for w in (mine, theirs))
        if here != there:
            raise GluontuneError(f"{source}: of another net: parameter {name} is {there} there, {here} here")


def restore_loader(restore: Callable[[Any], None], state: dict[str, Any], rank: int, source: str) -> None:
    """Restore a loader to rank 0's position; the other ranks are at the same position of their shares."""
    if "order" in state:
        state = {**state, "order": {**state["order"], "rank": rank}}
    try:
        restore(state)
    except GluontuneError as error:
        raise GluontuneError(f"{source}: of another data set or division of it: {error}") from None


def part_of(arrays: Mapping[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    """The arrays of one part of a checkpoint by their names in it, such as ``parameter`` by place in the net.

    >>> part_of({"average/0.weight": np.ones(1), "parameter/0.weight": np.zeros(1)}, "average")
    {'0.weight': array([1.])}
    """
    return {name[len(part) + 1 :]: array for name, array in arrays.items() if name.startswith(f"{part}/")}


def weights_in(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The validated weights of a run, by place in the net: the second set if any, else the trained ones.

    >>> weights_in({"average/0.weight": np.ones(1), "parameter/0.weight": np.zeros(1), "parameter/0.bias": np.zeros(1)})
    {'0.weight': array([1.]), '0.bias': array([0.])}
    """
    return {**part_of(arrays, "parameter"), **part_of(arrays, "average")}


@contextlib.contextmanager
def _opened(path: str | Path, whole: bool) -> Iterator[tuple[IO[bytes], dict[str, Any]]]:
    """The stream, at the arrays, and the header."""
    with explained(path), os.fdopen(open_regular(path), "rb") as stream:
        start = stream.read(_LINE)
        if not start.startswith(f"{FORMAT} ".encode()) or not start.endswith(b"\n"):
            raise DamagedCheckpoint(f"{path}: damaged, or not a checkpoint ({FORMAT}) at all")
        if whole:
            digest = hashlib.sha256()
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
            if digest.hexdigest().encode() != start[len(FORMAT) + 1 : -1]:
                raise DamagedCheckpoint(f"{path}: damaged (its checksum does not hold)")
            stream.seek(_LINE)
        try:
            header = parse_json(stream.readline(MOST_JSON))
        except ValueError:
            raise DamagedCheckpoint(f"{path}: damaged (its header is not JSON)") from None
        if not isinstance(header, dict):
            raise DamagedCheckpoint(f"{path}: damaged (its header is no mapping)")
        yield stream, header


def files(folder: str | Path) -> list[Path]:
    """The checkpoints of a folder, the newest (by step) first."""
    with contextlib.suppress(OSError):
        found = [(int(m[1]), p) for p in Path(folder).iterdir() if (m := _NAME.fullmatch(p.name))]
        return [path for _, path in sorted(found, reverse=True)]
    return []


def newest(folder: str | Path) -> tuple[Path | None, dict[str, Any], list[str]]:
    """The newest whole checkpoint, its header, and a sentence on each damaged one before it."""
    passed: list[str] = []
    there = files(folder)
    for path in there:
        try:
            return path, read_header(path), passed
        except DamagedCheckpoint as error:
            passed.append(str(error))
    if there:
        raise GluontuneError(
            f"{folder}: all {len(there)} checkpoints are damaged, the newest first: {passed[0]}; "
            "remove them to begin anew"
        )
    return None, {}, passed


def prune(folder: str | Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints and the one with the best validation score."""
    there = files(folder)
    best, best_score = None, -math.inf
    for path in there:
        with contextlib.suppress(GluontuneError):
            header = read_header(path, whole=False)
            score = header.get("val_score", header.get("val_accuracy"))  # the latter of earlier versions
            if score is not None and score > best_score:
                best, best_score = path, score
    for path in there[keep:]:
        if path != best:
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[Path]:
    """Hold a folder of checkpoints for one run; partial files of killed runs are removed."""
    place = writable_folder(folder)
    with open(place / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{place}: another run is writing its checkpoints there; choose another folder") from None
        for part in place.glob(".step-*.part"):
            with contextlib.suppress(OSError):
                part.unlink()
        yield place


class Writer:
    """Writes checkpoints in a thread, so that training continues once they are copied."""

    def __init__(self, folder: str, keep: int):
        self.folder, self.keep = Path(folder), keep
        self._thread: threading.Thread | None = None
        self._error: str | None = None
        self._written: str | None = None

    def save(self, header: dict[str, Any], arrays: dict[str, np.ndarray], wait: bool = False) -> dict[str, Any]:
        """Start writing, after the previous one is written.

        Returns:
            ``{"written", "error"}``: the last complete checkpoint on the disk, and the error of this one or the one
            before (reported once). With ``wait`` this one has been written.
        """
        self.finish()
        self._thread = threading.Thread(target=self._write, args=(header, arrays), name="gluontune-checkpoint")
        self._thread.start()
        if wait:
            self.finish()
        error, self._error = self._error, None
        return {"written": self._written, "error": error}

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        path = self.folder / name_of(header["step"])
        try:
            write(path, header, arrays)
            self._written = str(path)
            prune(self.folder, self.keep)
        except Exception as error:  # training continues without it; the caller gets the error
            self._error = str(error)
