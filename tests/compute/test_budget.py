"""What a race costs: its budget, what is dropped when, and what is remembered. The clock is pretended."""

from __future__ import annotations

import json

import pytest
from race_fakes import Pretended, mx, nn, pretend, small

from gluontune.compute import hybridize, race
from gluontune.core.errors import UsageError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path))
    return tmp_path / "hybridize"


def quick_with_rewrites(trial):
    return 0.1 - 0.01 * len(trial.rewrites) + 0.08 * (trial.settings == "imperative")


def spent():
    return Pretended.now


@pytest.mark.parametrize("steps, least", [(400, 0), (1000, 2), (2000, 4), (10**6, 9)])
def test_no_more_than_a_twentieth_of_the_steps_to_come_and_never_more_than_15_seconds(monkeypatch, steps, least):
    pretend(monkeypatch, quick_with_rewrites)
    net, x = small()
    report = hybridize(net, x, steps=steps)
    fastest = min(t.step_ms["median"] for t in report.trials if t.step_ms) / 1e3
    budget = min(15.0, 0.05 * steps * fastest)
    reference = 1 + 3 * 0.18  # without it nothing is known of the steps
    assert least <= spent() <= max(budget + 1e-6, reference)
    assert report.seconds == spent()


def test_a_few_steps_to_come_are_not_raced_for_and_the_net_stays_as_it_is(monkeypatch):
    pretend(monkeypatch, quick_with_rewrites)
    net, x = small()
    net.hybridize(static_alloc=True)
    report = hybridize(net, x, steps=100)
    assert spent() == 0 and report.chosen.settings == "static_alloc" and report.trials == [report.chosen]
    assert dict(net._flags)["static_alloc"] and not dict(net._flags)["static_shape"] and net._active
    assert report.notes == ["100 steps to come are too few to pay for a race: the net stays as it is, static_alloc"]
    assert "not run" in str(report) and json.dumps(report.to_dict())


def test_a_budget_for_the_reference_alone_leaves_the_net_and_says_so(monkeypatch):
    pretend(monkeypatch, quick_with_rewrites)
    net, x = small()
    report = hybridize(net, x, budget_s=2)
    assert report.chosen.name == "imperative" and not net._active and len(report.trials) == 1
    assert "the budget (2 s, as given) is too small" in report.notes[0]
    before = spent()
    again = hybridize(small()[0], x, budget_s=2.5)
    assert again.cached and again.notes == report.notes and spent() == before
    static = small()[0]
    static.hybridize(static_alloc=True, static_shape=True)
    assert not hybridize(static, x, budget_s=2.5).cached and static._active  # it stays as it is, too
    assert not hybridize(small()[0], x, budget_s=20).cached


def test_where_steps_of_one_trial_differ_a_look_drops_less(monkeypatch):
    pretend(monkeypatch, lambda t: 0.1 + 0.05 * (t.settings != "static"))
    net, x = small()
    assert "imperative" in hybridize(net, x, rewrites=[]).dropped
    prepare = Pretended.prepare

    def disturbed(self, trial):
        first, second = prepare(self, trial)
        return [first, second * 1.4]

    monkeypatch.setattr(Pretended, "prepare", disturbed)
    report = hybridize(net, x, rewrites=[], refresh=True)
    assert not any(told.startswith("after a look") for told in report.dropped.values())


def test_a_budget_that_ends_early_goes_to_the_most_promising_first_and_names_the_rest(monkeypatch):
    pretend(monkeypatch, quick_with_rewrites)
    net, x = small()
    report = hybridize(net, x, budget_s=8)
    assert spent() <= 8 and report.chosen.settings == "static" and len(report.chosen.rewrites) == 3
    (told,) = [note for note in report.notes if note.startswith("not tried")]
    assert "static_alloc" in told and "8 s, as given" in told


def test_what_is_far_behind_leaves_after_a_look_and_a_hurt_variant_after_a_heat(monkeypatch):
    def seconds(trial):
        slow = {"imperative": 0.2, "hybridized": 0.12, "static_alloc": 0.11, "static": 0.1}
        return slow.get(trial.settings, 0.1) * (1 - 0.1 * len(trial.rewrites))

    pretend(monkeypatch, seconds)
    net, x = small()
    report = hybridize(net, x, budget_s=100)
    assert report.dropped["imperative"].startswith("after a look: 2.86 ×")
    left_out = "static + pool-to-mean + pad-channels"
    assert report.dropped[left_out].startswith("after a heat: 1.1")
    by_name = {t.name: t for t in report.trials}
    assert by_name["imperative"].step_ms["n"] == 3  # beside the others, for their ratio, and no more
    assert by_name[left_out].step_ms["n"] == 3 and report.chosen.step_ms["n"] == 8
    assert "dropped after a look" in str(report) and report.to_dict()["dropped"] == report.dropped


def test_a_race_is_remembered_for_the_same_net_shapes_machine_and_settings(monkeypatch):
    pretend(monkeypatch, quick_with_rewrites)
    net, x = small()
    first = hybridize(net, x)
    monkeypatch.setattr(Pretended, "now", 0.0)
    net, _ = small()  # other names, other weights
    again = hybridize(net, x, steps=10)
    assert not first.cached and again.cached and spent() == 0
    assert again.chosen.name == first.chosen.name == "static + pool-to-mean + pad-channels + fuse-bn-relu"
    assert type(net[3]) is not nn.GlobalAvgPool2D and dict(net._flags)["static_shape"]
    assert [t.name for t in again.trials] == [t.name for t in first.trials] and again.notes == first.notes
    assert "remembered" in str(again) and again.chosen in again.trials
    static = small()[0]
    static.hybridize(static_alloc=True)
    assert hybridize(static, x).cached  # whatever mode it is in
    used = small()[0]
    used.hybridize()
    used(x).asnumpy()
    assert hybridize(used, x).cached  # and whatever it noted at a hybridized forward
    assert not hybridize(small()[0], x, refresh=True).cached
    assert not hybridize(small()[0], mx.nd.ones((3, 3, 8, 8))).cached
    assert not hybridize(small()[0], x, loss=lambda out: out.sum()).cached
    assert hybridize(small()[0], x, loss=lambda out: out.sum()).cached
    assert not hybridize(small()[0], x, rewrites=[]).cached
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert not hybridize(small()[0], x).cached


def test_a_net_that_was_put_back_after_a_race_is_the_same_net():
    net, x = small()
    net(x).wait_to_read()  # now its shapes are known
    before = race.fingerprint(net, [(x,)], None, [])
    for block in net:
        attributes = vars(block)
        attributes["_monitor_all"] = attributes.pop("_monitor_all")  # in another order
    assert race.fingerprint(net, [(x,)], None, []) == before


def test_code_and_attributes_of_a_net_make_it_another():
    def forward(text, before=""):
        made = {}
        exec(f"{before}class Net(mx.gluon.{text}", {"mx": mx, "__name__": "theirs"}, made)
        net = made["Net"]()
        net.initialize()
        return race.fingerprint(net, [(mx.nd.ones((2, 3)),)], None, [])

    block = "Block):\n def __init__(s, k={k}):\n  super().__init__(); s.k = k\n def forward(s, x): return x * {f}"
    hybrid = "HybridBlock):\n def hybrid_forward(s, F, x): return F.{f}(x)"
    wrapped = [forward(block.format(k=1, f=f), "@mx.util.use_np\n") for f in (2, 3)]
    assert wrapped[0] != wrapped[1]  # all methods of such a class are wrappers of one code
    texts = [block.format(k=1, f=2), block.format(k=2, f=2), block.format(k=1, f=3)]
    texts += [hybrid.format(f="relu"), hybrid.format(f="exp")]
    assert len({forward(text) for text in texts}) == len(texts)
    assert [forward(text) for text in texts] == [forward(text) for text in texts]


def test_a_race_cut_short_is_run_again_for_a_budget_that_can_tell_more(monkeypatch):
    pretend(monkeypatch, quick_with_rewrites)
    net, x = small()
    assert any(note.startswith("not tried") for note in hybridize(net, x, budget_s=8).notes)
    assert hybridize(small()[0], x, budget_s=8).cached and hybridize(small()[0], x, steps=500).cached
    assert not hybridize(small()[0], x, budget_s=60).cached
    assert hybridize(small()[0], x, budget_s=600).cached  # that one was complete


SPOILT = {
    "no JSON": lambda d: "{",
    "another's": lambda d: json.dumps({**d, "key": "0" * 40}),
    "another version's": lambda d: json.dumps({**d, "schema_version": 99}),
    "a list": lambda d: "[]",
    "chosen out of range": lambda d: json.dumps({**d, "chosen": 99}),
    "chosen from the end": lambda d: json.dumps({**d, "chosen": -1}),
    "an unknown mode": lambda d: json.dumps({**d, "trials": [{**t, "settings": "turbo"} for t in d["trials"]]}),
    "a rewrite from elsewhere": lambda d: json.dumps(
        {**d, "trials": [{**t, "rewrites": ["order-sums"]} for t in d["trials"]]}
    ),
    "no time": lambda d: json.dumps(
        {**d, "trials": [{**t, "step_ms": {"median": -1, "ci95": [1, 1], "n": 1}} for t in d["trials"]]}
    ),
    "a field too many": lambda d: json.dumps({**d, "trials": [{**t, "_state": 1} for t in d["trials"]]}),
    "no trials": lambda d: json.dumps({**d, "trials": None}),
    "deep": lambda d: "[" * 100_000,
    "bytes": lambda d: "\udcff",
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_memory_is_no_memory(monkeypatch, cache, how):
    pretend(monkeypatch, quick_with_rewrites)
    net, x = small()
    hybridize(net, x)
    (entry,) = cache.glob("*.json")
    text = SPOILT[how](json.loads(entry.read_text()))
    entry.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert not hybridize(small()[0], x).cached
    assert hybridize(small()[0], x).cached  # and it is mended


def test_a_cache_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    pretend(monkeypatch, quick_with_rewrites)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "file"))
    net, x = small()
    assert hybridize(net, x).chosen.settings == "static"
    assert not hybridize(small()[0], x).cached


def test_each_rewrite_is_verified_once_and_before_the_race(monkeypatch):
    from gluontune.compute import _proof

    made = []
    monkeypatch.setattr(_proof.Proof, "wrong", lambda self, targets, before: made.append(targets[0].path))
    pretend(monkeypatch, quick_with_rewrites)
    net, x = small()
    assert len(hybridize(net, x).chosen.rewrites) == len(made) == 3


def test_a_rewrite_that_breaks_the_net_is_never_raced(monkeypatch):
    from gluontune.compute import _blocks

    right = _blocks.MeanGlobalAvgPool2D.hybrid_forward
    monkeypatch.setattr(_blocks.MeanGlobalAvgPool2D, "hybrid_forward", lambda s, F, x: right(s, F, x) * 2)
    pretend(monkeypatch, quick_with_rewrites)
    net, x = small()
    report = hybridize(net, x)
    assert report.chosen.rewrites == ("pad-channels", "fuse-bn-relu") and type(net[3]) is nn.GlobalAvgPool2D
    assert not any("pool-to-mean" in t.rewrites for t in report.trials)
    assert any(note.startswith("pool-to-mean: taken back") for note in report.notes)


@pytest.mark.parametrize("wrong", [{"steps": -1}, {"steps": 1.5}, {"budget_s": 0}, {"budget_s": float("nan")}])
def test_wrong_figures(wrong):
    net, x = small()
    with pytest.raises(UsageError, match=next(iter(wrong))):
        hybridize(net, x, **wrong)
