"""Benchmarks: gluontune's parts and their peers side by side, each in a process of its own.

``contest`` says how a benchmark is written: the work, the entrants, the rounds. ``outcome`` makes the
JSON and the table. Nothing here is imported by the rooms below, and no peer by this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune import lazy

if TYPE_CHECKING:
    from gluontune.bench.contender import LIMIT as LIMIT
    from gluontune.bench.contender import OURS as OURS
    from gluontune.bench.contender import Contender as Contender
    from gluontune.bench.contender import Entrant as Entrant
    from gluontune.bench.contest import hold as hold
    from gluontune.bench.outcome import document as document
    from gluontune.bench.outcome import show as show
    from gluontune.bench.places import peer_python as peer_python
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
