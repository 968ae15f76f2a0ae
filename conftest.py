"""``--rooms``: the tests of the rooms that work without mxnet, with every ``import mxnet`` refused.

What such a run leaves out is counted and said. A test of these rooms that compares with the real mxnet carries
``@pytest.mark.mxnet``; a doctest that needs it calls ``mxnet()``.
"""

from __future__ import annotations

import gc
import importlib.util
import re
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# A busy machine is not the code's fault. `make test` takes fewer examples than a plain pytest: make fuzz, make asan and
# tests/trials look for new ones.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=40)
hypothesis.settings.load_profile("patient")

ROOT = Path(__file__).resolve().parent
ROOMS = ("core", "recipe", "codec", "records", "datasets", "loading", "monitor", "report", "convert/graph")
TESTS = (*ROOMS, "core", "recipe", "convert/test_graph.py", "project/test_rooms.py", "search/test_journal.py")
COMMANDS = ("pack", "data", "size", "monitor", "report")
MXNET_FILES = ("loading/test_gluon.py",)  # all of it
REFUSED = ("mxnet", "gluoncv")
TORCH_ROOM = ROOT / "gluontune" / "convert" / "bridge"  # its doctests want PyTorch, which is nobody's requirement
collect_ignore = ["benchmarks/airbench_on_cpu.py"]  # a script that wants PyTorch

#: Files that take longest, the longest first: they begin first, so that none is alone at the end.
LONGEST = (
    "course/test_assessment.py",
    "methods/test_methods.py",
    "capture/test_migrate_script.py",
    "course/test_cheats.py",
    "course/test_cheats_second.py",
    "capture/test_changes.py",
    "capture/test_on_torch.py",
    "optim/test_reference.py",
    "training/test_torch.py",
    "training/test_run.py",
    "training/test_started.py",
    "compute/test_rewrites.py",
    "capture/test_capture.py",
    "parallel/test_summing.py",
    "codec/test_building.py",
    "cli/test_main.py",
    "search/test_best_files.py",
    "convert/test_bridge_operators.py",
    "search/test_bench_recipes.py",
    "convert/test_migrate.py",
    "training/test_checkpoint.py",
    "training/test_torch_ranks.py",
    "convert/test_bridge_texts.py",
    "project/test_catalogue.py",
    "search/test_bench_scripts.py",
    "search/test_bench_training.py",
    "loading/test_decode.py",
    "report/test_html.py",
    "training/test_jobs.py",
)

_left_out: dict[str, set[str]] = {
    "test files of other rooms": set(),
    "test files that need mxnet": set(),
    "tests that need mxnet": set(),
}


class _Refuse:
    """Put first in ``sys.meta_path``: importing mxnet fails, as where it is not installed."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"{name}: these tests run without it (--rooms)", name=name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rooms", action="store_true", help="only what works without mxnet, and without it")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--rooms"):
        sys.meta_path.insert(0, _Refuse)  # type: ignore[arg-type]
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> str | None:
    return f"without mxnet: {', '.join(ROOMS)}" if config.getoption("--rooms") else None


def in_rooms(path: Path) -> bool:
    """Whether a file belongs to what works without mxnet.

    >>> in_rooms(ROOT / "tests" / "records" / "test_pack.py"), in_rooms(ROOT / "gluontune" / "job" / "job.py")
    (True, False)
    """
    top, _, inner = path.relative_to(ROOT).as_posix().partition("/")
    if top == "gluontune":
        return inner.startswith(tuple(f"{room}/" for room in ROOMS))
    command = inner.startswith("cli/") and path.stem.rpartition("_")[-1] in COMMANDS
    return top == "tests" and path.name.startswith("test_") and (command or inner.startswith(TESTS))


def _place(path: Path) -> str:
    """A test file by its room and name."""
    return f"{path.parent.name}/{path.name}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path == TORCH_ROOM and importlib.util.find_spec("torch") is None:
        return True
    if collection_path.suffix != ".py":
        return None
    if not collection_path.name.startswith(("test_", "conftest")) and b">>>" not in collection_path.read_bytes():
        return True  # nothing to collect: each worker would import it and look through it
    if not config.getoption("--rooms"):
        return None
    if _place(collection_path) in MXNET_FILES:
        _left_out["test files that need mxnet"].add(str(collection_path))
        return True
    if in_rooms(collection_path):
        return None
    if collection_path.name.startswith("test_"):
        _left_out["test files of other rooms"].add(str(collection_path))
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(_place(item.path), len(order)))
    if not config.getoption("--rooms"):
        return
    needs = [item for item in items if _needs_mxnet(item)]
    _left_out["tests that need mxnet"].update(item.nodeid for item in needs)
    config.hook.pytest_deselected(items=needs)
    items[:] = [item for item in items if item not in set(needs)]


def _needs_mxnet(item: pytest.Item) -> bool:
    if isinstance(item, pytest.DoctestItem):
        return any(re.search(r"\bmxnet\(\)", example.source) for example in item.dtest.examples)
    return item.get_closest_marker("mxnet") is not None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before each file's first test: what is alive now is left out of collections of garbage.

    MXNet's ``DataLoader`` collects when it is made, which takes half a second among the objects of all tests.
    """
    if item.path != _frozen_before[0]:
        _frozen_before[0] = item.path
        gc.collect()
        gc.freeze()


_frozen_before: list[Path | None] = [None]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist: each has collected all tests
        session.config.workeroutput["left_out"] = {what: sorted(found) for what, found in _left_out.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for what, found in getattr(node, "workeroutput", {}).get("left_out", {}).items():
        _left_out[what].update(found)


#: What `make test` leaves to other commands, and what each wants.
ELSEWHERE = (
    "make test-slow", "make horovod (g++, cmake)", "make hosts (root, iproute2, openmpi-bin, mpich)",
    "make browser (chromium)", "make asan (gcc or clang)", "make fresh (root, mmdebstrap)", "make peers",
)  # fmt: skip


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", [])]  # type: ignore[index]
    wants = Counter(reason.removeprefix("Skipped: ").split(": ")[0] for reason in skipped)
    if len(skipped) + len(terminalreporter.stats.get("passed", [])) > 1000:  # the whole suite
        for what, count in wants.most_common():
            terminalreporter.write_line(f"a machine with more runs more: {count} tests skipped, {what}")
        terminalreporter.write_line(f"run elsewhere: {', '.join(ELSEWHERE)}")
    if config.getoption("--rooms"):
        counts = ", ".join(f"{len(found)} {what}" for what, found in _left_out.items())
        terminalreporter.write_line(f"left out, because this run is without mxnet: {counts}")


@pytest.fixture(autouse=True)
def _temporary_folders_of_doctests(request, monkeypatch, tmp_path_factory):
    """Examples make folders by ``tempfile`` and leave them; pytest removes its own."""
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("doctest")))
