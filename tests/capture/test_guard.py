"""What fails on our side is MXNet's to compute."""

from __future__ import annotations

import pytest

from gluontune.capture.retreat import or_mxnet


class Handler:
    def __init__(self, act):
        self.lazy, self.retreats, self.act = True, [], act

    def retreat(self, error):
        self.lazy = False
        self.retreats.append(str(error))

    @or_mxnet
    def read(self, array, run):
        return self.act(self, run)


def fails(handler, run):
    raise ValueError("ours")


def fails_late(handler, run):
    run()
    raise KeyError("ours")


def passes(handler, run):
    handler.kept = run
    return run()


@pytest.mark.parametrize("act", [fails, fails_late])
def test_mxnet_computes_once_what_fails_here(act):
    calls = []
    handler = Handler(act)
    assert handler.read("array", lambda: calls.append(1) or "MXNet's") == "MXNet's"
    assert len(calls) == 1
    assert len(handler.retreats) == 1
    assert not handler.lazy


@pytest.mark.parametrize("act", [passes, fails_late])
def test_an_error_of_mxnets_is_the_programs(act):
    handler = Handler(act)
    with pytest.raises(ValueError, match="the program's"):
        handler.read("array", lambda: fails_of_the_program())
    assert handler.retreats == []
    assert handler.lazy


def fails_of_the_program():
    raise ValueError("the program's")


def test_what_was_made_is_not_kept():
    handler = Handler(passes)
    assert handler.read("array", lambda: "MXNet's") == "MXNet's"
    assert handler.kept.result is None
