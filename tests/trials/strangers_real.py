"""MXNet's own unit tests, of a checkout of MXNet v1.x, with our parts in MXNet's place: ``make strangers FROM=PATH``.

The checkout is only read, and the tests run in a temporary folder. A line for each test says which of our parts stood
in it, and whether it passed or failed. Where a test asks for what we refuse, or looks at what we keep otherwise, the
line says so, and the rest of the test runs all the same. The command fails if a test does. test_multilamb compares
216 sets of 20 layers and takes longer than all others together: ARGS="-k 'not multilamb'" leaves it out.
"""

from __future__ import annotations

import os
import sys
import tempfile
import types
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gluontune as gt
from gluontune.core.errors import UsageError
from gluontune.optim._base import from_mxnet, to_mxnet  # before mx.lr_scheduler is ours
from gluontune.optim.cards import OPTIMIZERS
from gluontune.recipe.registry import resolve
from gluontune.records.layout import image_record, split_image_record

FILES = ("test_recordio.py", "test_gluon_data.py", "test_optimizer.py")
#: Tests that only download data sets.
LEFT_OUT = {"test_datasets": "it downloads MNIST, CIFAR-10 and CIFAR-100, and holds no part of ours"}
#: Optimizers of ours whose states are not MXNet's: of which dtypes, and why. There the weights alone are compared.
STATES = {
    "GTFTML": ("float", "FTML keeps one and not three; a step follows from it alone"),
    "GTNAG": ("float16", "with float16 the master comes first, as MXNet's other optimizers have it"),
}

stood: set[str] = set()
said: set[str] = set()


def nose() -> types.ModuleType:
    """The three names that MXNet's tests take from nose, which no Python of today can import."""

    def make_decorator(original: Any) -> Any:
        def name(function: Any) -> Any:
            function.__name__ = original.__name__
            return function

        return name

    def raises(*kinds: type[BaseException]) -> Any:
        def decorate(function: Any) -> Any:
            @make_decorator(function)
            def test(*args: Any) -> None:
                with pytest.raises(kinds):
                    function(*args)

            return test

        return decorate

    tools = types.ModuleType("nose.tools")
    tools.make_decorator, tools.raises, tools.assert_raises = make_decorator, raises, pytest.raises  # type: ignore[attr-defined]
    package = types.ModuleType("nose")
    package.tools = tools  # type: ignore[attr-defined]
    sys.modules.update({"nose": package, "nose.tools": tools})
    return package


def told(name: str, function: Any) -> Any:
    """``function``, whose calls are noted under ``name``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        stood.add(name)
        return function(*args, **kwargs)

    return call


def data_loader(*args: Any, thread_pool: bool = False, **kwargs: Any) -> Any:
    if thread_pool:
        with pytest.raises(UsageError, match="thread_pool"):
            gt.loading.safe_dataloader(*args, thread_pool=True, **kwargs)
        said.add("thread_pool=True is refused: threads on one record handle read wrong records")
    return gt.loading.safe_dataloader(*args, **kwargs)


def substitute() -> None:
    """Put our parts where MXNet's tests look for MXNet's."""
    mx = gt.runtime.mxnet()
    records = mx.recordio
    for name in ("MXRecordIO", "MXIndexedRecordIO"):
        setattr(records, name, told(name, getattr(gt.records, name)))
    records.pack = told("pack", lambda header, payload: image_record(payload, header[1], header[2]))
    records.unpack = told("unpack", split_image_record)
    mx.gluon.data.DataLoader = told("DataLoader", data_loader)
    schedulers = types.ModuleType("mxnet.lr_scheduler")
    schedulers.__dict__.update(vars(mx.lr_scheduler))  # a copy: MXNet's classes look for one another in their own
    for name in ("Factor", "MultiFactor", "Poly", "Cosine"):
        theirs = getattr(mx.lr_scheduler, f"{name}Scheduler")
        setattr(schedulers, f"{name}Scheduler", told(f"{name}Scheduler", schedule(theirs)))
    mx.lr_scheduler = sys.modules["mxnet.lr_scheduler"] = schedulers
    ours = {card.name: resolve(card.path) for card in map(OPTIMIZERS.__getitem__, OPTIMIZERS.names())}
    for name, theirs in list(mx.optimizer.Optimizer.opt_registry.items()):
        if name in ours and ours[name] is not theirs:
            new = told(theirs.__name__, ours[name])
            mx.optimizer.Optimizer.opt_registry[name] = new
            setattr(mx.optimizer, theirs.__name__, new)
    compare = mx.test_utils.compare_optimizer

    def compare_optimizer(opt1: Any, opt2: Any, shape: Any, dtype: Any, *args: Any, **kwargs: Any) -> None:
        whose, reason = STATES.get(type(opt2).__name__, ("", ""))
        if whose and whose in str(np.dtype(dtype)):
            said.add(f"states are not compared: {reason}")
            kwargs["compare_states"] = False
        compare(opt1, opt2, shape, dtype, *args, **kwargs)

    mx.test_utils.compare_optimizer = compare_optimizer


def schedule(theirs: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        scheduler = theirs(*args, **kwargs)
        return to_mxnet(from_mxnet(scheduler), base_lr=scheduler.base_lr)

    return make


def images(folder: Path) -> None:
    """16 photographs in place of those that the tests would download from a host that is gone."""
    import cv2

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(16):
        small = rng.integers(0, 256, (6, 8, 3), np.uint8)
        cv2.imwrite(str(folder / f"{i}.jpg"), cv2.resize(small, (320 + i, 240)))


class Rows:
    """The table, a line for each test as it ends."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.name not in LEFT_OUT]

    def pytest_runtest_setup(self, item: Any) -> None:
        stood.clear()
        said.clear()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome == "failed":
            outcome = "refused" if report.passed and said else report.outcome
            self.counts[outcome] += 1
            parts = ", ".join(sorted(stood)) or "none of ours"
            name = report.nodeid.split("/")[-1]
            print("  ".join([f"{outcome:8}{name:68}{parts}", *sorted(said)]), flush=True)


def main(checkout: Path) -> int:
    tests = checkout / "tests" / "python" / "unittest"
    missing = [name for name in FILES if not (tests / name).is_file()]
    if missing:
        print(f"gluontune: {tests} has no {missing[0]}: give FROM=PATH, a checkout of MXNet v1.x", file=sys.stderr)
        return 2
    sys.dont_write_bytecode = True
    nose()
    substitute()
    rows = Rows()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        images(Path("data/test_images/test_images"))
        Path("pytest.ini").write_text("[pytest]\n")
        code = pytest.main(
            [*(str(tests / name) for name in FILES),
             "-c=pytest.ini", f"--rootdir={folder}", "-qq", "--no-header", "-pno:cacheprovider", "-pno:warnings",
             *sys.argv[2:]],
            plugins=[rows],
        )  # fmt: skip
        os.chdir("/")
    for name, reason in LEFT_OUT.items():
        print(f"left out {name}: {reason}")
    print("in all:", ", ".join(f"{count} {outcome}" for outcome, count in sorted(rows.counts.items())))
    return int(code)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not sys.argv[1]:
        sys.exit("gluontune: make strangers FROM=PATH, a checkout of MXNet v1.x")
    sys.exit(main(Path(sys.argv[1]).resolve()))
