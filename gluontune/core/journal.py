"""Interruptible long work: each finished piece is saved at once, and a resume, here alone, continues after the last.

A :class:`Document` is written anew after each piece. A :class:`Journal` has JSON lines beside a document that is
written at the end: a description of the work, then a piece each; a line that a crash cut off is ignored.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Optional, TypeVar, cast

from gluontune import __version__
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import Closing, set_aside, writable_folder, write_json
from gluontune.core.reading import explained, parse_json, read_bytes, read_text, understood

SCHEMA = 1
Facts = Callable[[], Mapping[str, Any]]
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_PACKAGES = ("mxnet", "numpy")  # figures of other versions are other figures


class Journal(Closing):
    """The finished pieces of long work.

    Args:
        out: the document of the work; the journal is ``NAME.journal.jsonl`` beside it. None: in memory only.
        kind: the name of the work, such as ``bench training``.
        given: its options, as plain values; a resume must have the same.
        machine: returns the facts of the machine.
        resume: continue the journal beside ``out``. Otherwise an earlier journal is renamed to
            ``NAME.journal.previous.jsonl``.

    Attributes:
        path: of the journal, or None. pieces: by key, in the order in which they were finished.
        resumed: the number of pieces from an earlier run.

    Raises:
        UsageError: a resume without ``out``, with other options, or while another run writes the same journal.
        GluontuneError: another kind of work, machine or version; a folder that cannot be written.

    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp()) / "training.json"
    >>> here = lambda: {"architecture": "x86_64", "cpu": {"model": "EPYC"}}
    >>> with Journal(out, "bench training", {"rounds": 9}, here) as journal:
    ...     journal.piece("mlp", lambda: {"rate": 5})
    {'rate': 5}
    >>> with Journal(out, "bench training", {"rounds": 9}, here, resume=True) as journal:
    ...     journal.piece("mlp", lambda: {"rate": 7}), journal.piece("resnet", lambda: {"rate": 1})
    ({'rate': 5}, {'rate': 1})
    >>> Journal(out, "bench training", {"rounds": 3}, here, resume=True)
    Traceback (most recent call last):
    gluontune.errors.UsageError: ...training.journal.jsonl: was begun with other options (rounds: then 9, now 3); give
    the same ones, or start without --resume
    """

    def __init__(
        self, out: str | Path | None, kind: str, given: Mapping[str, Any], machine: Facts, *, resume: bool = False
    ):
        self.path = None if out is None else Path(out).with_name(f"{Path(out).stem}.journal.jsonl")
        self.pieces: dict[str, Any] = {}
        self._stream: IO[bytes] | None = None
        facts = machine()
        packages = facts.get("packages") or {}
        versions = {"gluontune": __version__, **{name: packages.get(name) for name in _PACKAGES}}
        self.header: dict[str, Any] = _plain(
            {"journal": SCHEMA, "kind": kind, "given": given, "begun": _now(), "machine": _identity(facts),
             "versions": versions}
        )  # fmt: skip
        if self.path is not None:
            self._begin(self.path, resume)
        elif resume:
            raise _without_out(kind)
        self.resumed = len(self.pieces)

    def _begin(self, path: Path, resume: bool) -> None:
        writable_folder(path.absolute().parent)
        resume = resume and path.exists()  # a kill may come before it is begun
        end = self._take_up(path) if resume else 0
        with explained(path):
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
        self._stream = stream
        if not end:
            self._write(self.header)

    def _take_up(self, path: Path) -> int:
        """Read the pieces. Returns the offset after the last whole line."""
        with explained(path):
            content = read_bytes(path)
        end = content.rfind(b"\n") + 1
        try:
            header, *lines = [parse_json(line) for line in content[:end].splitlines()] or [{}]
            whole = header.get("journal") == SCHEMA and isinstance(header["kind"], str)
            whole &= all(isinstance(header[part], dict) for part in ("given", "machine", "versions"))
            pieces = {line["key"]: line["piece"] for line in lines}
        except (ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            fault = "not a journal of this version of gluontune, or damaged; start without --resume"
            raise GluontuneError(f"{path}: {fault}")
        if header["kind"] != self.header["kind"]:
            raise GluontuneError(f"{path}: is of {header['kind']}, not of {self.header['kind']}; choose another --out")
        _same_options(path, header["given"], self.header["given"])
        for part, where in (("machine", "on another machine"), ("versions", "with other versions")):
            if changed := _differences(header[part], self.header[part]):
                raise GluontuneError(f"{path}: was measured {where} ({changed}); start without --resume")
        self.header, self.pieces = header, pieces
        return end

    def piece(self, key: str, work: Callable[[], T]) -> T:
        """The saved piece ``key``, or the result of ``work()``, which is then saved. Pieces are plain JSON values."""
        if key not in self.pieces:
            self.keep(key, work())
        found: T = self.pieces[key]
        return found

    def keep(self, key: str, piece: Any) -> None:
        """Save a finished piece; it is on the disk when this returns."""
        self.pieces[key] = _plain(piece)
        if self._stream is not None:
            self._write({"key": key, "piece": self.pieces[key]})

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._stream is not None
        with explained(str(self.path)):
            self._stream.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            self._stream.flush()
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Release the journal to other processes; safe to call twice."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
            self._stream = None

    def __exit__(self, *raised: Any) -> None:
        self.close()
        if self.resumed and raised[1] is not None:
            with understood(self.path):  # pieces of another shape
                raise raised[1]


def resumable(work: F) -> F:
    """``work(…, out=, resume=)``, whose resume raises a GluontuneError where the document holds odd values."""

    @functools.wraps(work)
    def guarded(*given: Any, **options: Any) -> Any:
        with understood(options.get("out")) if options.get("resume") else contextlib.nullcontext():
            return work(*given, **options)

    return cast(F, guarded)


class Document:
    """A document that grows: saved after each piece, continued by a resume.

    Args:
        path: its file, or None: in memory only. An earlier one is renamed to ``NAME.previous.json``.
        work: its name in errors, such as ``climb``. schema: its version.
        fields: of a new one, beside the fields of every document.
        machine: returns the facts of the machine.
        asked: the options of a document, by name; a resume must have the same.
        usual: the defaults of all recipe fields, for documents of earlier versions, which had fewer fields.
        resume: continue an existing file.

    Raises:
        UsageError: a resume without a file, or with other options (they are named).
        GluontuneError: another kind or version of document, or a damaged one; a folder that cannot be written.
    """

    def __init__(
        self, path: Path | None, work: str, schema: int, fields: Mapping[str, Any], machine: Facts, *,
        asked: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda document: document["given"],
        usual: Mapping[str, Any] | None = None, resume: bool = False,
    ):  # fmt: skip
        self.path = path
        if path is not None:
            writable_folder(path.parent)
        elif resume:
            raise UsageError(f"resume needs the folder (--out) of the interrupted {work}")
        fields = _plain(fields)
        if resume and (left := earlier(path, work, lambda document: [_plain(document)])):
            found = left[0]
            alike = isinstance(found, dict) and found.get("kind") == fields.get("kind")
            try:
                before = asked(found)
            except (LookupError, TypeError):
                alike = False
            if not alike:
                raise GluontuneError(f"{path}: not a {work} of gluontune's; start without --resume")
            if (version := found.get("schema_version")) != schema:
                fault = f"schema_version {version}, but this gluontune goes on with {schema}; start without --resume"
                raise GluontuneError(f"{path}: {fault}")
            with understood(path):
                _same_options(path, before, asked(fields), usual or {})
            self.document: dict[str, Any] = {**found, "complete": False}
            return
        set_aside(path)
        self.document = {
            "schema_version": schema, "gluontune": __version__, "created": _now(), "complete": False,
            "machine": machine(), **fields,
        }  # fmt: skip

    def save(self) -> None:
        if self.path is not None:
            write_json(self.path, self.document)

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """A context for the work, which Ctrl-C ends early; ``complete`` is then false."""
        try:
            yield
            self.document["complete"] = True
        except KeyboardInterrupt:
            self.document["complete"] = False


def earlier(out: Path | None, work: str, take: Callable[[Any], T]) -> Optional[T]:
    """``take(document)`` of the document that an interrupted run has left, or None if it left none.

    Raises a UsageError without ``out``, and a GluontuneError for a document that cannot be read or lacks a value.
    """
    if out is None:
        raise _without_out(work)
    try:
        return take(parse_json(read_text(out)))
    except FileNotFoundError:
        return None  # a kill may come before the first piece
    except GluontuneError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise GluontuneError(f"{out}: cannot be resumed: {error}; start without --resume") from error


def _without_out(work: str) -> UsageError:
    return UsageError(f"{work} --resume: name the file to continue: --out FILE")


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _plain(value: Any) -> Any:
    """``value`` after a round through JSON: paths become texts, tuples lists."""
    return json.loads(json.dumps(value, allow_nan=False, default=str))


def _identity(machine: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that identify a machine."""
    cpu, gpus = machine.get("cpu") or {}, machine.get("gpus") or ()
    return {
        **{name: machine.get(name) for name in ("architecture", "python")},
        "cpu": cpu.get("model"),
        "usable_cores": cpu.get("usable_cores"),
        "gpus": [gpu.get("name") if isinstance(gpu, dict) else str(gpu) for gpu in gpus],
    }


def another_machine(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How two machines differ, or ""."""
    return _differences(_identity(before), _identity(now))


def _same_options(
    path: Path | None, before: Mapping[str, Any], now: Mapping[str, Any], usual: Mapping[str, Any] | None = None
) -> None:
    """Refuse a resume with other options."""
    filled = dict(before)
    if usual and "recipe" in filled:
        filled["recipe"] = {**usual, **filled["recipe"]}
    if usual and "recipes" in filled:
        filled["recipes"] = {name: {**usual, **each} for name, each in filled["recipes"].items()}
    if changed := _differences(filled, now):
        raise UsageError(
            f"{path}: was begun with other options ({changed}); give the same ones, or start without --resume"
        )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], of: str = "") -> str:
    found = []
    for name in {**before, **now}:
        then, value = before.get(name), now.get(name)
        if then == value:
            continue
        if isinstance(then, dict) and isinstance(value, dict) and not of:
            found.append(_differences(then, value, f"{name} "))
        else:
            found.append(f"{of}{name}: then {then!r}, now {value!r}")
    return ", ".join(found)
