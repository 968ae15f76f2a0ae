"""Facts and recipes as plain words."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from gluontune.report import formatting as words

__all__ = ["as_yaml", "changes", "key", "pairs", "said"]


def changes(base: Mapping[str, Any], best: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The fields in which ``best`` differs: (name, value in ``base``, value in ``best``)."""
    return [
        (words.clean(field, 60), said(base.get(field)), said(value))
        for field, value in best.items()
        if base and base.get(field) != value
    ]


def pairs(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Facts as (name, value); mappings inside become facts of their own."""
    found = []
    for name, value in facts.items():
        title = words.clean(name, 60).replace("_", " ")
        if isinstance(value, Mapping):
            found += [(f"{title}: {inner}", text) for inner, text in pairs(value)]
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            found += [(f"{title} {place}", said(item)) for place, item in enumerate(value)]
        elif value is not None and value != [] and value != "":
            found.append((title, said(value)))
    return found


def said(value: Any) -> str:
    """One value for a reader.

    >>> said(12345), said(None), said([1, True])
    ('12,345', '—', '1, yes')
    """
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) >= 1000 else f"{value:g}"
    if isinstance(value, Mapping):
        return words.clean(", ".join(f"{k}={said(v)}" for k, v in value.items()), 400) or "none"
    if isinstance(value, (list, tuple)):
        shown = list(itertools.islice((said(v) for v in value), 20))
        return words.clean(", ".join(shown), 400) or "none"
    return words.clean(value, 400)


def key(value: Any) -> str:
    """A text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, default=str)


def as_yaml(recipe: Mapping[str, Any]) -> str:
    """A recipe to copy."""
    import yaml

    return yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=False) if recipe else ""
