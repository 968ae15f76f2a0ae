"""Long work that can be interrupted: each finished piece is kept at once, and a resume goes on after the last.

All that resumes does so here. A :class:`Document` is written anew after each piece. A :class:`Journal` keeps the pieces
of work whose document is made at its end, as JSON lines beside it: the first says what the work is (its kind, what was
asked for, the machine and the versions), each further one is a piece under its key. A line is on the disk before the
work goes on; one that a crash has cut off is left out when the journal is read again.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Optional, TypeVar

from gluontune import __version__
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import set_aside, writable_folder, write_json
from gluontune.core.reading import explain_os_error, parse_json, read_bytes, read_text, understood

SCHEMA = 1
Facts = Callable[[], Mapping[str, Any]]
T = TypeVar("T")
_PACKAGES = ("mxnet", "numpy")  # figures of other versions are other figures


class Journal:
    """What a piece of long work has found so far.

    Args:
        out: the document that the work will write; the journal lies beside it, as ``NAME.journal.jsonl``. None keeps
            the pieces in memory only.
        kind: what the work is called, such as ``bench training``.
        given: what was asked for, as plain values; a resume must ask for the same.
        machine: gives the facts of the machine.
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
            told = "not a journal of this version of gluontune, or damaged; start without --resume"
            raise GluontuneError(f"{path}: {told}")
        if header["kind"] != self.header["kind"]:
            raise GluontuneError(f"{path}: is of {header['kind']}, not of {self.header['kind']}; choose another --out")
        _same_options(path, header["given"], self.header["given"])
        for part, told in (("machine", "on another machine"), ("versions", "with other versions")):
            if changed := _differences(header[part], self.header[part]):
                raise GluontuneError(f"{path}: was measured {told} ({changed}); start without --resume")
        self.header, self.pieces = header, pieces
        return end

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


class Document:
    """A document that grows: saved after each piece, taken up again by a resume.

    Args:
        path: its file; None keeps it in memory. An earlier one is kept beside a new one as ``NAME.previous.json``.
        work: what it is called in errors, such as ``climb``. schema: its version.
        fields: of a new one, beside those that each has.
        machine: gives the facts of the machine.
        asked: what of a document was asked for, by name; a resume must ask for the same.
        usual: all fields of a recipe at their defaults: so an earlier version's recipe ran, which had fewer.
        resume: go on with what the file holds; from the start where there is none yet.

    Raises:
        UsageError: a resume without a file, or with other options (they are named).
        GluontuneError: another kind or version of document, or a damaged one; a folder that cannot be written.
    """

    def __init__(
        self,
        path: Path | None,
        work: str,
        schema: int,
        fields: Mapping[str, Any],
        machine: Facts,
        *,
        asked: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda document: document["given"],
        usual: Mapping[str, Any] | None = None,
        resume: bool = False,
    ):
        self.path = path
        if path is not None:
            writable_folder(path.parent)
        elif resume:
            raise UsageError(f"resume needs the folder (--out) of the interrupted {work}")
        fields = _plain(fields)
        if resume and (left := earlier(path, work, lambda document: [document])):
            found = left[0]
            alike = isinstance(found, dict) and found.get("kind") == fields.get("kind")
            try:
                before = asked(found)
            except (LookupError, TypeError):
                alike = False
            if not alike:
                raise GluontuneError(f"{path}: not a {work} of gluontune's; start without --resume")
            if (version := found.get("schema_version")) != schema:
                told = f"schema_version {version}, but this gluontune goes on with {schema}; start without --resume"
                raise GluontuneError(f"{path}: {told}")
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
        """The work on it, which Ctrl-C ends early: the document then says that it is not complete."""
        try:
            yield
            self.document["complete"] = True
        except KeyboardInterrupt:
            self.document["complete"] = False


def earlier(out: Path | None, work: str, take: Callable[[Any], T]) -> Optional[T]:
    """What a resume takes out of the document that an interrupted run has left; None where it left none yet.

    Args:
        out: the document. work: what it is called. take: called with the document.

    Raises:
        UsageError: there is no ``out``. GluontuneError: the document cannot be read, or lacks what is taken.
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
    return UsageError(f"{work} --resume: say which file to go on with: --out FILE")


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _plain(value: Any) -> Any:
    """As it will be read back: paths are texts, tuples are lists."""
    return json.loads(json.dumps(value, allow_nan=False, default=str))


def _identity(machine: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a machine another one."""
    cpu, gpus = machine.get("cpu") or {}, machine.get("gpus") or ()
    return {
        **{name: machine.get(name) for name in ("architecture", "python")},
        "cpu": cpu.get("model"),
        "usable_cores": cpu.get("usable_cores"),
        "gpus": [gpu.get("name") if isinstance(gpu, dict) else str(gpu) for gpu in gpus],
    }


def _same_options(
    path: Path | None, before: Mapping[str, Any], now: Mapping[str, Any], usual: Mapping[str, Any] | None = None
) -> None:
    """Refuse what is resumed with other options than it was begun with."""
    filled = dict(before)
    if usual and "recipe" in filled:
        filled["recipe"] = {**usual, **filled["recipe"]}
    if usual and "recipes" in filled:
        filled["recipes"] = {name: {**usual, **each} for name, each in filled["recipes"].items()}
    if changed := _differences(filled, now):
        told = f"was begun with other options ({changed}); give the same ones, or start without --resume"
        raise UsageError(f"{path}: {told}")


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], of: str = "") -> str:
    """
    >>> _differences({"rounds": 9, "recipe": {"net": "mlp"}}, {"rounds": 3, "recipe": {"net": "cnn"}})
    "rounds: then 9, now 3, recipe net: then 'mlp', now 'cnn'"
    """
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
