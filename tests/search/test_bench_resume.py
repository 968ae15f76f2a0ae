"""An interrupted benchmark keeps its rounds and its finished cases, and goes on from there."""

from __future__ import annotations

import pytest

from gluontune.core.errors import UsageError
from gluontune.core.journal import Journal
from gluontune.runtime import machine_facts
from gluontune.search.bench import training
from gluontune.search.bench.benchmark import hold
from gluontune.search.bench.contender import OURS, Entrant

FIELD = [
    Entrant(name, peer, "gluontune.search.bench._loaders_torch:Sleeper", {"units": 8, "sleep_s": 0.001})
    for name, peer in (("mine", OURS), ("theirs", "them"))
]


def contest(out, resume=False, stop_after=None, field=FIELD):
    def say(line):
        if stop_after is not None and line.startswith(f"round {stop_after} "):
            raise KeyboardInterrupt

    with Journal(out, "bench x", {}, machine_facts, resume=resume) as journal:
        return hold(field, rounds=4, seconds=0.02, say=say, journal=journal, key="case")


def test_rounds_are_kept_and_the_rest_is_measured(tmp_path):
    out = tmp_path / "x.json"
    with pytest.raises(KeyboardInterrupt):
        contest(out, stop_after=3)
    with Journal(out, "bench x", {}, machine_facts, resume=True) as journal:
        kept = [journal.pieces[f"case round {n}"]["rates"] for n in (1, 2, 3)]
        assert len(journal.pieces) == 3
    mine, theirs = contest(out, resume=True)
    assert mine.rates[:3] == [r["mine"] for r in kept]
    assert theirs.rates[:3] == [r["theirs"] for r in kept]
    assert len(mine.rates) == len(theirs.rates) == 4


def test_who_failed_before_stays_failed(tmp_path):
    out = tmp_path / "x.json"
    field = [FIELD[0], Entrant("broken", "them", "gluontune.search.bench._loaders_torch:nothing_there")]
    with pytest.raises(KeyboardInterrupt):
        contest(out, stop_after=2, field=field)
    mine, broken = contest(out, resume=True, field=[FIELD[0], Entrant("broken", "them", FIELD[0].target)])
    assert len(mine.rates) == 4
    assert "nothing_there" in str(broken.failure)
    assert not broken.rates


def test_training_keeps_net_by_net(tmp_path, monkeypatch):
    out, seen = tmp_path / "training.json", []

    def case(net, batch, *rest):
        seen.append(net)
        if net == "small_vgg" and seen.count("small_vgg") == 1:
            raise KeyboardInterrupt
        return {"rows": [{"name": net}], "ours": {}, "figures": {}, "versions": {}, "machine": {}, "net": net,
                "batch_size": batch, "image_size": 32, "parameters": 1, "allocator_of_pytorch": "default"}  # fmt: skip

    monkeypatch.setattr(training, "_case", case)
    nets = ["cifar_resnet20_v1", "small_vgg"]
    with pytest.raises(KeyboardInterrupt):
        training.run(nets, out=out, rounds=3)
    found = training.run(nets, out=out, rounds=3, resume=True)
    assert seen == ["cifar_resnet20_v1", "small_vgg", "small_vgg"]
    assert [row["name"] for row in found["rows"]] == nets
    with pytest.raises(UsageError, match="rounds: then 3, now 9"):
        training.run(nets, out=out, rounds=9, resume=True)
