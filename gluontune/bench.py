"""Benchmarks: gluontune's parts and their peers side by side, each in a process of its own.

``search/bench/benchmark.py`` says how one is written: the work, the entrants, the rounds; and makes JSON and table.
Nothing here is imported by the rooms below, and no peer by this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.search.bench.benchmark import document as document, hold as hold, show as show
    from gluontune.search.bench.contender import (
        LIMIT as LIMIT,
        OURS as OURS,
        Contender as Contender,
        Entrant as Entrant,
        peer_python as peer_python,
    )
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
