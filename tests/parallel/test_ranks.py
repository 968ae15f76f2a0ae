"""A script of one's own as several ranks."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from gluontune.core.errors import UsageError
from gluontune.parallel import start_ranks

HEAD = """
import sys, time
import numpy as np
import gluontune as gt
ranks = gt.parallel.start_ranks(2)
"""

SUMS = """
mx = gt.runtime.mxnet()
own = mx.nd.array([ranks.rank + 1, 10.0])
ranks.exchange.sum_gradients([own])
sys.stdout.write(f"{sys.argv[1]} {ranks.rank} {own.asnumpy().tolist()}\\n")  # one write: print makes several of them
sys.stdout.flush()
"""

FAILS = """
if ranks.rank == 1:
    sys.exit(7)
time.sleep(600)
"""


def script(folder, text):
    path = folder / "own.py"
    path.write_text(HEAD + text)
    done = subprocess.run(
        [sys.executable, str(path), "--flag"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    left = [p for p in psutil.process_iter(["cmdline"]) if str(path) in " ".join(p.info["cmdline"] or ())]
    assert not left
    return done


def test_each_rank_gets_the_arguments_and_the_sum(tmp_path):
    done = script(tmp_path, SUMS)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["--flag 0 [3.0, 20.0]", "--flag 1 [3.0, 20.0]"]


def test_one_that_fails_ends_all_with_its_status(tmp_path):
    assert script(tmp_path, FAILS).returncode == 7  # within two minutes: nobody waits for the one that sleeps


def test_what_is_no_script_cannot_be_started_twice(monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # a worker of xdist has none
    with pytest.raises(UsageError, match=r"python SCRIPT\.py"):
        start_ranks(2)
    with pytest.raises(UsageError, match="at least 1"):
        start_ranks(0)
