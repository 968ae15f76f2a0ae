"""Fixtures that several test files share."""

from __future__ import annotations

import os

import pytest

# Two workers' teams of threads wait for each other by spinning where there are too few cores: some tests took twenty
# times as long. Processes with the tuned runtime have their own number.
if os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def reused():
    """Training processes that train one recipe after another: ``run(recipe, site=reused.site)``.

    For what a training shows; a test of how it starts, is hurt or ends, or of bits, has processes of its own.
    """
    from gluontune.search.bench.recipes import Pool

    with Pool() as pool:
        yield pool


@pytest.fixture
def machine(monkeypatch):
    """Climbs run on a pretended machine: no process is started, and every figure is given."""
    from tests.support.pretended_machine import pretend

    return pretend(monkeypatch)
