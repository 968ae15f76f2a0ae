"""``gluontune data list / fetch / add / make``: data sets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gluontune.cli import _common
from gluontune.cli._common import JSON_OPTION, argument, deliver, option
from gluontune.core.errors import UsageError


def list_(json: bool = JSON_OPTION) -> None:
    """List all data sets: source, licence, size, mean and deviation, and whether they are installed."""
    from gluontune import datasets
    from gluontune.core.files import cache_dir

    rows = datasets.list_datasets()
    deliver({"folder": str(cache_dir()), "datasets": rows}, json, lambda: _show_list(rows, cache_dir()))


def _show_list(rows: list[dict[str, Any]], folder: Path) -> None:
    table = Table("name", "images", "shape", "size", "here", box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        count = f"{row['num_train']:,} + {row['num_test']:,}" if row["num_train"] else "any"
        shape = " x ".join(map(str, row["image_shape"])) if row["image_shape"] else "any"
        size = f"{row['bytes'] / 1e6:.1f} MB" if row["bytes"] else "-"
        here = "yes" if row["present"] else "no"
        table.add_row(row["name"], count, shape, size, here)
    _common.stdout.print(table)
    for row in rows:
        source = f"source: {row['source']}; licence: {row['licence']}"
        _common.say(f"{row['name']}: {row['summary']}\n    {source}{_figures(row)}")
    _common.say(f"data folder: {folder} (GLUONTUNE_DATA)")


def fetch(
    name: str = argument(..., "cifar10 or fashion-mnist."),
    url: Optional[str] = option(None, "Download from here; the SHA-256 must be the same."),
    force: bool = option(False, "Even if it is here already."),
    json: bool = JSON_OPTION,
) -> None:
    """Download a data set (resumable), check its SHA-256, install it."""
    from gluontune import datasets

    with _progress(f"fetching {name}") as report:
        result = datasets.fetch(name, url=url, force=force, progress=report)
    _show(result, json)


def add(
    name: str = argument(..., "cifar10 or fashion-mnist."),
    archive: Path = argument(..., "The archive (or folder) that is on this machine."),
    json: bool = JSON_OPTION,
) -> None:
    """Install a data set from an archive on this machine; wrong contents are refused."""
    from gluontune import datasets

    with _progress(f"adding {name}") as report:
        result = datasets.add(name, archive, progress=report)
    _show(result, json)


def make(
    name: str = argument(..., "sample, or synthetic:train=2000,test=200,size=256x256,…"),
    source: Optional[Path] = option(None, "sample: folder with the four official files of Fashion-MNIST."),
    out: Path = option(Path("data"), "sample: folder for the records."),
    fast: bool = option(False, "sample: compress with zlib, not zopfli: 4 % larger."),
    json: bool = JSON_OPTION,
) -> None:
    """Generate a data set: synthetic images, or the embedded sample from the official files."""
    from gluontune import datasets

    options: dict[str, Any] = {}
    if name == "sample":
        if source is None:
            raise UsageError("data make sample: say --source FOLDER, with the four official files of Fashion-MNIST")
        options = {"source": source, "out": out, "fast": fast}
    with _progress(f"making {name}") as report:
        result = datasets.make(name, progress=report, **options)
    _show(result, json)


def _figures(row: dict[str, Any]) -> str:
    """The line of mean and deviation, if they are known."""
    if not row["mean"]:
        return ""
    mean, std = (" ".join(f"{v:.4f}" for v in row[key]) for key in ("mean", "std"))
    return f"\n    mean: {mean}; deviation: {std}"


def _show(result: dict[str, Any], json: bool) -> None:
    deliver(result, json, lambda: _common.say(*(f"{key}: {value}" for key, value in result.items())))


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr; a new total (images after bytes) restarts it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=_common.stderr, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None)

        yield report


GROUP = "Data sets: list, download, take over, generate."
COMMANDS = (list_, fetch, add, make)
