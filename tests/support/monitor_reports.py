"""Reports of phases as a run's document has them, for the tests of the verdicts."""

from __future__ import annotations

import json

from gluontune import monitor

__all__ = ["CPU", "GPU", "NET", "kind", "report", "verdict", "without"]

NET = {"forward": 40.0, "backward": 50.0, "update": 10.0}
GPU = {"device": "gpu", "num_workers": 4, "hybridize": "static", "dtype": "float16", "loader": "threaded"}
CPU = {**GPU, "device": "cpu"}


def report(phases, sampled=100.0, usual=100.0, queue=None, host=None):
    return {
        "phases_pct": phases,
        "phases_ms": {name: share * (sampled or 100.0) / 100 for name, share in phases.items()},
        "queue_ms": queue or {},
        "host_ms": host or {},
        "step_time_ms": {"sampled": sampled, "unsampled": usual},
    }


def without(share, **phases):
    """A step of which the net takes what the given phases leave."""
    return {"forward": 100 - share, **phases}


def verdict(*given):
    """Of what a run's document says: its words are equal to the program's, and no more."""
    return monitor.verdict(*json.loads(json.dumps(given)))


def kind(*given):
    return verdict(*given).kind
