"""Benchmarks: gluontune's parts and their peers side by side, each in a process of its own.

``search/bench/benchmark.py`` says how one is written: the work, the entrants, the rounds; and makes JSON and table.
Nothing here is imported by the rooms below, and no peer by this process.
"""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
