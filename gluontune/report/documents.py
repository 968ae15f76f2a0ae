"""Which of gluontune's documents a file holds, and the view that shows it: studies, searches, benchmarks.

A new kind of document is one entry of :data:`KINDS`; ``gluontune report`` then reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gluontune.errors import GluontuneError
from gluontune.report.benchmarks import benchmark_view
from gluontune.report.factors import factors_view
from gluontune.report.searches import esgd_view, tune_view
from gluontune.report.tta_page import tta_view

__all__ = ["KINDS", "Kind", "kind_of", "named", "view"]


@dataclass(frozen=True)
class Kind:
    """A kind of document.

    Args:
        command: what writes it. mark: whether a document is one.
        view: from the document and a key to what :func:`gluontune.report.study.study` gives.
        schema: the version that is read, or None where its documents carry none.
        folder: whether a folder that holds NAME.json is told by it: the runs that it is made of lie below.
    """

    command: str
    mark: Callable[[Mapping[str, Any]], bool]
    view: Callable[[Mapping[str, Any], str], dict[str, Any]]
    schema: int | None = 1
    folder: bool = False


def named(name: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a document says that it is of this kind."""
    return lambda document: document.get("kind") == name


def _benchmark(document: Mapping[str, Any]) -> bool:
    return "conditions" in document and ("rows" in document or "parts" in document)


KINDS = {
    "tta": Kind("gluontune tta", named("tta"), tta_view, folder=True),
    "factors": Kind("gluontune factors", named("factors"), factors_view, folder=True),
    "esgd": Kind("gluontune esgd", named("esgd"), esgd_view, folder=True),
    "tune": Kind("gluontune tune", lambda document: {"heats", "tried"} <= set(document), tune_view, folder=True),
    "bench": Kind("gluontune bench", _benchmark, benchmark_view, None),
}


def kind_of(document: Mapping[str, Any]) -> str | None:
    """The name in :data:`KINDS`, or None.

    >>> kind_of({"kind": "tta"}), kind_of({"rows": [], "conditions": {}}), kind_of({"recipe": {}})
    ('tta', 'bench', None)
    """
    return next((name for name, kind in KINDS.items() if kind.mark(document)), None)


def view(document: Mapping[str, Any], source: str) -> dict[str, Any]:
    """What the page shows of a document.

    Raises:
        GluontuneError: another schema version, or something is missing: it is damaged or was never finished.
    """
    name = kind_of(document)
    if name is None:
        raise GluontuneError(f"{source}: not a study or a benchmark of gluontune's")
    kind = KINDS[name]
    if kind.schema is not None and document.get("schema_version") != kind.schema:
        raise GluontuneError(
            f"{source}: schema_version {document.get('schema_version')!r}, but this gluontune reads {kind.schema}; "
            "read it with the version that wrote it, or measure again"
        )
    try:
        return kind.view(document, name)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        missing = f"without {error}" if isinstance(error, KeyError) else f"that cannot be read ({error})"
        raise GluontuneError(
            f"{source}: a document of `{kind.command}` {missing}: it is damaged, or was interrupted before "
            "its end; the same command with --resume finishes it"
        ) from error
