"""A document that grows while long work goes on: saved after each piece, taken up again by a resume."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gluontune
from gluontune import runtime
from gluontune.errors import GluontuneError, UsageError
from gluontune.files import parse_json, set_aside, writable_folder, write_json
from gluontune.reading import read_text, understood
from gluontune.recipe import Recipe

__all__ = ["ResumableDocument", "begin", "take_up"]


def begin(path: Path | None, schema: int, **fields: Any) -> dict[str, Any]:
    """A new document: what every one of them says first, then ``fields``.

    An earlier document at ``path`` is kept as ``NAME.previous.json``; None is for one that stays in memory.
    """
    set_aside(path)
    return {
        "schema_version": schema,
        "gluontune": gluontune.__version__,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "complete": False,
        "machine": runtime.machine_facts(),
        **fields,
    }


def goes_on(path: Path | None, resume: bool) -> bool:
    """Whether there is something to go on with: a kill may come before the first piece, as in ``train``."""
    return resume and (path is None or path.exists())


def take_up(path: Path | None, schema: int, work: str, key: str) -> dict[str, Any]:
    """The document that an interrupted run left at ``path``.

    Args:
        work: what it is called in an error: ``climb``, ``search``.
        key: a field that only such a document has.

    Raises:
        UsageError: no path. GluontuneError: unreadable, another kind or schema version.
    """
    if path is None:
        raise UsageError(f"resume needs the folder (--out) of the interrupted {work}")
    try:
        document = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise GluontuneError(f"{path}: cannot be resumed: {error}; start without --resume") from error
    if not isinstance(document, dict) or key not in document:
        raise GluontuneError(f"{path}: not a {work} of gluontune's; start without --resume")
    if document.get("schema_version") != schema:
        raise GluontuneError(
            f"{path}: schema_version {document.get('schema_version')}, but this gluontune goes on with "
            f"{schema}; start without --resume"
        )
    document["complete"] = False
    return document


class ResumableDocument:
    """What a piece of long work has found so far, as ``DIR/NAME.json``.

    Args:
        name: ``tta`` or ``factors``; also the document's ``kind``.
        schema: its schema version.
        given: what was asked for; a resume must ask for the same.
        folder: where it is saved; None keeps it in memory.
        resume: go on with what the folder holds; from the start where it holds nothing yet.

    Attributes:
        document: what the file holds; ``done`` is its list of finished pieces.

    Raises:
        UsageError: a resume without a folder, or with other options (they are named).
        GluontuneError: another schema version, a folder that cannot be written.

    An earlier document is kept beside a new one as ``NAME.previous.json``.
    """

    def __init__(self, name: str, schema: int, given: Mapping[str, Any], folder: str | Path | None, resume: bool):
        self.path = None if folder is None else Path(folder) / f"{name}.json"
        if folder is not None:
            writable_folder(folder)
        asked: dict[str, Any] = json.loads(json.dumps(given))  # as it will be read back
        if goes_on(self.path, resume):
            with understood(self.path):
                self.document = self._taken_up(name, schema, asked)
        else:
            self.document = begin(self.path, schema, kind=name, given=asked, done=[])

    def _taken_up(self, name: str, schema: int, given: dict[str, Any]) -> dict[str, Any]:
        document = take_up(self.path, schema, f"{name} run", "kind")
        if document["kind"] != name:
            raise GluontuneError(f"{self.path}: not a {name} run of gluontune's; start without --resume")
        before = _with_new_fields(document["given"])
        differs = [_difference(key, before.get(key), value) for key, value in given.items()]
        changed = ", ".join(text for text in differs if text)
        if changed:
            raise UsageError(
                f"{self.path}: was begun with other options ({changed}); give the same ones, or start without --resume"
            )
        return document

    def enter(self, piece: Mapping[str, Any]) -> None:
        """Add a finished piece and save."""
        self.document["done"].append(dict(piece))
        self.save()

    def save(self) -> None:
        if self.path is not None:
            write_json(self.path, self.document)


def _with_new_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Recipes of an earlier version, with what they have gained since at its default: that is how they ran."""
    usual, filled = Recipe().to_dict(), dict(given)
    if "recipe" in filled:
        filled["recipe"] = {**usual, **filled["recipe"]}
    if "recipes" in filled:
        filled["recipes"] = {name: {**usual, **each} for name, each in filled["recipes"].items()}
    return filled


def _difference(name: str, before: Any, now: Any) -> str:
    if before == now:
        return ""
    if isinstance(before, dict) and isinstance(now, dict):
        fields = [k for k in {**before, **now} if before.get(k) != now.get(k)]
        return ", ".join(f"{name} {k}: then {before.get(k)!r}, now {now.get(k)!r}" for k in fields)
    return f"{name}: then {before!r}, now {now!r}"
