"""Formats of numbers and of foreign text for readers."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

from gluontune.core.errors import clean

# The phases of a step, in order, with their texts for sentences.
PHASES = {
    "data": "waiting for data", "copy": "copying to the device", "forward": "the forward pass",
    "backward": "the backward pass", "update": "updating the parameters", "metrics": "computing loss and accuracy",
    "rest": "work outside the measured phases",
}  # fmt: skip

# The rungs' changes, for sentences; other rungs go by their name.
RUNG_TEXTS = {
    "together": "the best guess at once", "environment": "setting threads and allocator",
    "multi-worker": "worker processes", "records": "records or samples in memory", "hybridized": "hybridizing",
    "mixed-precision": "mixed precision", "large-batch": "a larger batch", "multi-device": "more devices",
    "modern-engine": "PyTorch's engine", "methods": "methods that need fewer epochs",
}  # fmt: skip

#: Sign and colour of each outcome; the sign, because not everyone can read colours.
MARKS = {
    "helped": ("▲", "green"), "hurt": ("▼", "red"), "no gain": ("=", "yellow"), "not measurable": ("?", "yellow"),
    "failed": ("✗", "red"), "skipped": ("–", "dim"), "interrupted": ("…", "yellow"), "start": ("●", ""),
}  # fmt: skip


def outcome(row: Mapping[str, Any]) -> str:
    """The outcome of a rung in a word or two; most have a sign in :data:`MARKS`.

    >>> outcome({"name": "naive", "status": "ran", "verdict": "n/a"}), outcome({"status": "failed"})
    ('start', 'failed')
    """
    if row["status"] != "ran":
        return str(row["status"])
    if row.get("measurable") is False:
        return "not measurable"
    unsaid = "start" if row["name"] == "naive" else "measured"
    return unsaid if row["verdict"] == "n/a" else str(row["verdict"])


def number(value: Any) -> float | None:
    """``value`` as a finite float, or None.

    >>> number(3), number("3"), number(float("nan")), number(True)
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def finite(document: Any) -> Any:
    """A copy with None in place of NaN and infinity, which JSON lacks."""
    if isinstance(document, Mapping):
        return {str(key): finite(value) for key, value in document.items()}
    if isinstance(document, (list, tuple)):
        return [finite(value) for value in document]
    if isinstance(document, float) and not math.isfinite(document):
        return None
    return document


def rate(value: float | None) -> str:
    """A throughput with three or more significant digits.

    >>> rate(1234.5), rate(12.345), rate(None)
    ('1,234', '12.3', '—')
    """
    if value is None:
        return "—"
    return f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:.3g}"


def rates(bounds: Any) -> str:
    """An interval of throughputs."""
    return f"{rate(bounds[0])}–{rate(bounds[1])}"


def unit(ladder: Mapping[str, Any]) -> str:
    """The unit of a ladder's throughput: images are named so."""
    return "img/s" if ladder["dataset"].get("image_shape") else "samples/s"


def decimals(value: float) -> int:
    """Decimals of a ratio: above 2 its third digit is noise."""
    return 0 if value >= 99.5 else 1 if value >= 1.95 else 2


def ratio(value: float | None) -> str:
    """
    >>> ratio(3.94), ratio(0.968)
    ('3.9×', '0.97×')
    """
    return "—" if value is None else f"{value:,.{decimals(value)}f}×"


def interval(bounds: Any, digits: int) -> str:
    """
    >>> interval([3.66, 4.12], 1)
    '3.7–4.1'
    """
    return f"{bounds[0]:,.{digits}f}–{bounds[1]:,.{digits}f}"


def prediction(row: Mapping[str, Any]) -> str:
    """The prediction for a rung (or a variant), and its error against the measurement.

    >>> prediction({"predicted": {"samples_per_sec": 900.0}, "samples_per_sec": {"median": 1000.0}})
    '900 (−10 %)'
    >>> prediction({"predicted": None, "samples_per_sec": {"median": 1000.0}})
    ''
    """
    guess, measured = row.get("predicted"), row.get("samples_per_sec")
    if not guess:
        return ""
    text = rate(guess["samples_per_sec"])
    if not measured:
        return text
    error = round(100 * (guess["samples_per_sec"] / measured["median"] - 1))
    return f"{text} ({'−' if error < 0 else '+' if error else '±'}{abs(error)} %)"


def ratio_with_interval(value: float | None, bounds: Any) -> str:
    """
    >>> ratio_with_interval(3.94, [3.66, 4.12]), ratio_with_interval(1.1, None)
    ('3.9× (95 %: 3.7–4.1)', '1.10×')
    """
    if value is None:
        return "—"
    return ratio(value) + (f" (95 %: {interval(bounds, decimals(value))})" if bounds else "")


def gain(measured: Mapping[str, Any] | None) -> str:
    """The text of a measured ratio, ``{"median", "ci95"}``; a dash for None."""
    return ratio_with_interval(measured["median"], measured["ci95"]) if measured else "—"


def accuracy(value: float | None) -> str:
    """
    >>> accuracy(0.8312)
    '83.1 %'
    """
    return "—" if value is None else f"{100 * value:.1f} %"


def reached(row: Mapping[str, Any], named: bool = False) -> str:
    """A run's last validation: its accuracy (``named`` so), else its metric by name; "" if there is none.

    >>> reached({"val_accuracy": [0.7, 0.8]}), reached({"val_accuracy": [0.8]}, named=True)
    ('80.0 %', 'accuracy 80.0 %')
    >>> reached({"val_accuracy": [], "val_metric": {"name": "rmse", "mode": "min", "values": [2.0, 1.25]}})
    'rmse 1.25'
    """
    if shares := [value for value in row["val_accuracy"] if value is not None]:
        return ("accuracy " if named else "") + accuracy(shares[-1])
    metric = row.get("val_metric") or {}
    values = [number(value) for value in metric.get("values", ())]
    return f"{clean(metric.get('name') or '', 20)} {values[-1]:.4g}" if values and values[-1] is not None else ""


def decided_by(row: Mapping[str, Any]) -> str:
    """What a rung's ratio compares."""
    return "less time to the accuracy" if (row.get("seconds_to_accuracy") or {}).get("ratio") else "the speed"


def duration(seconds: float | None) -> str:
    """
    >>> duration(0.84), duration(42.3), duration(125), duration(7300)
    ('0.8 s', '42 s', '2 min 5 s', '2 h 2 min')
    """
    if seconds is None:
        return "—"
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def changed_fields(base: Mapping[str, Any], best: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The fields in which ``best`` differs: (name, value in ``base``, value in ``best``)."""
    return [
        (clean(field, 60), value_text(base.get(field)), value_text(value))
        for field, value in best.items()
        if base and base.get(field) != value
    ]


def fact_pairs(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Facts as (name, value); mappings inside become facts of their own."""
    found = []
    for name, value in facts.items():
        title = clean(name, 60).replace("_", " ")
        if isinstance(value, Mapping):
            found += [(f"{title}: {inner}", text) for inner, text in fact_pairs(value)]
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            found += [(f"{title} {place}", value_text(item)) for place, item in enumerate(value)]
        elif value is not None and value != [] and value != "":
            found.append((title, value_text(value)))
    return found


def value_text(value: Any) -> str:
    """One value for a reader.

    >>> value_text(12345), value_text(None), value_text([1, True])
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
        return clean(", ".join(f"{k}={value_text(v)}" for k, v in value.items()), 400) or "none"
    if isinstance(value, (list, tuple)):
        shown = list(itertools.islice((value_text(v) for v in value), 20))
        return clean(", ".join(shown), 400) or "none"
    return clean(value, 400)


def canonical(value: Any) -> str:
    """A text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, default=str)


def as_yaml(recipe: Mapping[str, Any]) -> str:
    """A recipe to copy."""
    import yaml

    return yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=False) if recipe else ""
