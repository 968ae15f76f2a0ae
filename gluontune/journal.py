"""Long work that can be interrupted: each finished piece is kept at once, and a resume goes on after the last.

A journal is a file of JSON lines. The first says what the work is: its kind, what was asked for, the machine and the
versions. Each further line is one finished piece under its key. A line is on the disk before the work goes on; a line
that a crash has cut off is left out when the journal is read again.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Callable, TypeVar

import gluontune
from gluontune import runtime
from gluontune.errors import GluontuneError, UsageError
from gluontune.files import explain_os_error, parse_json, writable_folder
from gluontune.reading import read_bytes

__all__ = ["Journal"]

SCHEMA = 1

T = TypeVar("T")
_PACKAGES = ("mxnet", "numpy")  # figures of other versions are other figures


class Journal:
    """What a piece of long work has found so far.

    Args:
        out: the document that the work will write; the journal lies beside it, as ``NAME.journal.jsonl``. None keeps
            the pieces in memory only.
        kind: what the work is called, such as ``bench training``.
        given: what was asked for, as plain values; a resume must ask for the same.
        resume: go on with what lies beside ``out``. Without it an earlier journal is kept as
            ``NAME.journal.previous.jsonl``.

    Attributes:
        path: of the journal, or None. pieces: by key, in the order in which they were finished.
        resumed: how many of them an earlier run has left.

    Raises:
        UsageError: a resume without ``out``, with other options, or while another run writes the same journal.
        GluontuneError: another kind of work, machine or version; a folder that cannot be written.

    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp()) / "training.json"
    >>> with Journal(out, "bench training", {"rounds": 9}) as journal:
    ...     journal.piece("mlp", lambda: {"rate": 5})
    {'rate': 5}
    >>> with Journal(out, "bench training", {"rounds": 9}, resume=True) as journal:
    ...     journal.piece("mlp", lambda: {"rate": 7}), journal.piece("resnet", lambda: {"rate": 1})
    ({'rate': 5}, {'rate': 1})
    >>> Journal(out, "bench training", {"rounds": 3}, resume=True)
    Traceback (most recent call last):
    gluontune.errors.UsageError: ...training.journal.jsonl: was begun with other options (rounds: then 9, now 3); give
    the same ones, or start without --resume
    """

    def __init__(self, out: str | Path | None, kind: str, given: Mapping[str, Any], *, resume: bool = False):
        self.path = None if out is None else _beside(Path(out))
        self.pieces: dict[str, Any] = {}
        self._stream: IO[bytes] | None = None
        machine = runtime.machine_facts()
        self.header: dict[str, Any] = _plain(
            {
                "journal": SCHEMA,
                "kind": kind,
                "given": dict(given),
                "begun": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "machine": _identity(machine),
                "versions": {
                    "gluontune": gluontune.__version__,
                    **{name: machine["packages"].get(name) for name in _PACKAGES},
                },
            }
        )
        if self.path is None:
            if resume:
                raise UsageError(f"{kind} --resume: say which file to go on with: --out FILE")
        else:
            self._begin(self.path, resume)
        self.resumed = len(self.pieces)

    def _begin(self, path: Path, resume: bool) -> None:
        writable_folder(path.absolute().parent)
        resume = resume and path.exists()  # a kill may come before it is begun
        end = self._take_up(path) if resume else 0
        try:
            # Opened without truncating: another run may be writing there.
            stream: IO[bytes] = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stream.close()
                raise UsageError(f"{path}: another run is writing it; choose another --out") from None
            if not resume and os.fstat(stream.fileno()).st_size:
                path.replace(path.with_name(path.name.replace(".journal.", ".journal.previous.")))
                stream.close()
                stream = open(path, "xb")  # noqa: SIM115 - lives as long as the journal
                fcntl.flock(stream, fcntl.LOCK_EX)
            stream.truncate(end)
            stream.seek(end)
        except OSError as error:
            raise explain_os_error(path, error) from error
        self._stream = stream
        if not end:
            self._write(self.header)

    def _take_up(self, path: Path) -> int:
        """Read the pieces; where the last whole line ends."""
        try:
            content = read_bytes(path)
        except OSError as error:
            raise explain_os_error(path, error) from error
        end = content.rfind(b"\n") + 1
        try:
            header, *lines = [parse_json(line) for line in content[:end].splitlines()] or [{}]
            whole = header.get("journal") == SCHEMA and isinstance(header["kind"], str)
            whole &= all(isinstance(header[part], dict) for part in ("given", "machine", "versions"))
            pieces = {line["key"]: line["piece"] for line in lines}
        except (ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            raise GluontuneError(
                f"{path}: not a journal of this version of gluontune, or damaged; start without --resume"
            )
        self._compare(path, header)
        self.header, self.pieces = header, pieces
        return end

    def _compare(self, path: Path, before: Mapping[str, Any]) -> None:
        if before["kind"] != self.header["kind"]:
            raise GluontuneError(f"{path}: is of {before['kind']}, not of {self.header['kind']}; choose another --out")
        for what, way_out in (
            ("given", "was begun with other options ({}); give the same ones, or start without --resume"),
            ("machine", "was measured on another machine ({}); start without --resume"),
            ("versions", "was measured with other versions ({}); start without --resume"),
        ):
            if changed := _differences(before[what], self.header[what]):
                kind = UsageError if what == "given" else GluontuneError
                raise kind(f"{path}: {way_out.format(changed)}")

    def piece(self, key: str, work: Callable[[], T]) -> T:
        """The piece ``key``: as it was kept, or of ``work()``, which is then kept. Pieces are plain JSON values."""
        if key not in self.pieces:
            self.keep(key, work())
        found: T = self.pieces[key]
        return found

    def keep(self, key: str, piece: Any) -> None:
        """Keep a finished piece; it is on the disk when this returns."""
        self.pieces[key] = _plain(piece)
        if self._stream is not None:
            self._write({"key": key, "piece": self.pieces[key]})

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._stream is not None
        try:
            self._stream.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise explain_os_error(str(self.path), error) from error

    def close(self) -> None:
        """Let others write the journal; safe to call twice."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
            self._stream = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _beside(out: Path) -> Path:
    return out.with_name(f"{out.stem}.journal.jsonl")


def _plain(value: Any) -> Any:
    """As it will be read back: paths are texts, tuples are lists."""
    return json.loads(json.dumps(value, allow_nan=False, default=str))


def _identity(machine: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a machine another one."""
    cpu = machine["cpu"]
    gpus = [gpu.get("name") if isinstance(gpu, dict) else str(gpu) for gpu in machine["gpus"]]
    return {
        "architecture": machine["architecture"],
        "python": machine["python"],
        "cpu": cpu["model"],
        "usable_cores": cpu["usable_cores"],
        "gpus": gpus,
    }


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """
    >>> _differences({"rounds": 9, "net": "mlp"}, {"rounds": 3, "net": "mlp"})
    'rounds: then 9, now 3'
    """
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(f"{name}: then {before.get(name)!r}, now {now.get(name)!r}" for name in names)
