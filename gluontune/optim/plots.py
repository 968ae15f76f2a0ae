"""Figures of schedules, range tests and trust ratios; matplotlib is imported on the first drawing."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune.core.errors import UsageError
from gluontune.core.files import atomic_write


def _figure(title: str, x: str, y: str) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


def save_figure(figure: Any, path: str | Path | None) -> Any:
    """Write ``figure`` to ``path``, if given, in the format of its suffix; return the figure."""
    if path is not None:
        content = io.BytesIO()
        kind = Path(path).suffix.lstrip(".") or "png"
        try:
            figure.savefig(content, format=kind)
        except ValueError:
            raise UsageError(f"{path}: no figure format {kind!r}; use .png, .svg or .pdf") from None
        with atomic_write(path) as stream:
            stream.write(content.getvalue())
    return figure


def plot_schedule(
    schedules: Callable[[int], float] | Mapping[str, Callable[[int], float]],
    *,
    updates: int = 1500,
    path: str | Path | None = None,
) -> Any:
    """Draw the rates of updates 0 … ``updates`` - 1 of one schedule, or of several by label.

    Args:
        schedules: a function ``num_update -> lr`` (an MXNet scheduler too), or a mapping of them.
        updates: their number.
        path: file to write.

    Returns:
        The matplotlib figure.

    Raises:
        UsageError: ``updates`` below 1, or an unknown file format.

    >>> from gluontune.optim.schedules import factor
    >>> figure = plot_schedule(factor(base_lr=1, step=250, factor=0.5))
    >>> rates = figure.axes[0].lines[0].get_ydata()
    >>> float(rates[250]), float(rates[251])
    (1.0, 0.5)
    """
    if updates < 1:
        raise UsageError(f"updates={updates!r}: give a number of at least 1")
    labelled = schedules if isinstance(schedules, Mapping) else {"": schedules}
    figure, axes = _figure("Learning-rate schedule", "update", "learning rate")
    for label, schedule in labelled.items():
        axes.plot(range(updates), [schedule(n) for n in range(updates)], label=label or None)
    if any(labelled):
        axes.legend()
    return save_figure(figure, path)


def plot_range_test(found: Any, *, path: str | Path | None = None) -> Any:
    """Draw a :class:`RangeTest`: loss, smoothed loss and the suggested rate, over a logarithmic axis.

    Args:
        found: of :func:`find_learning_rate`. path: file to write (.png, .svg or .pdf).

    >>> from gluontune.optim import RangeTest
    >>> rates, losses = [0.001, 0.01, 0.1, 1.0], [2.3, 2.2, 1.5, 9.0]
    >>> figure = plot_range_test(RangeTest(rates, losses, losses, suggestion=0.1, diverged=True))
    >>> figure.axes[0].get_xlabel()
    'learning rate'
    """
    figure, axes = _figure("Range test", "learning rate", "loss")
    axes.semilogx(found.learning_rates, found.losses, alpha=0.3, label="loss")
    axes.semilogx(found.learning_rates, found.smoothed, label="smoothed")
    axes.axvline(found.suggestion, linestyle="--", color="black", label=f"suggestion {found.suggestion:.2g}")
    axes.set_ylim(top=max(found.smoothed[0] * 1.5, min(found.smoothed) * 1.1))
    axes.legend()
    return save_figure(figure, path)


def plot_trust_ratios(
    ratios: Mapping[str, float] | Sequence[Mapping[str, float]], *, path: str | Path | None = None
) -> Any:
    """Draw trust ratios by layer: one reading as bars, several as lines over time.

    Args:
        ratios: of :func:`gt.optim.trust_ratios`, one result or a list.
        path: file to write.

    Raises:
        UsageError: no layer in them.

    >>> len(plot_trust_ratios({"conv0": 0.01, "dense0": 0.02}).axes[0].patches)
    2
    """
    readings = [ratios] if isinstance(ratios, Mapping) else list(ratios)
    if not readings or not readings[0]:
        raise UsageError("ratios: there is no layer with a trust ratio in them")
    layers = list(readings[0])
    if len(readings) == 1:
        figure, axes = _figure("Trust ratios", "trust ratio", "")
        axes.barh(layers, [readings[0][layer] for layer in layers])
        axes.set_xscale("log")
        axes.invert_yaxis()
        figure.set_size_inches(7, max(4, 0.22 * len(layers)))
    else:
        figure, axes = _figure("Trust ratios", "reading", "trust ratio")
        for layer in layers:
            axes.semilogy([reading[layer] for reading in readings], label=layer)
        if len(layers) <= 12:
            axes.legend(fontsize="small")
    return save_figure(figure, path)
