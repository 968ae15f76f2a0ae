"""Methods that shorten training: each against its definition, on both engines, resumed, and off where not asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import gluontune as gt
from gluontune.core.errors import UnknownNameError, UsageError
from gluontune.engines.mxnet.session import Session
from gluontune.engines.torch.export import export_job
from gluontune.loading import build
from gluontune.loading.base import generator
from gluontune.methods import batches, losses, nets
from gluontune.methods.batches import UpdatePlan
from gluontune.methods.cards import METHODS, numbers_of, with_methods
from gluontune.optim import schedules
from gluontune.recipe import Recipe
from gluontune.runtime import mxnet

SMALL = {"loader": "resident", "train_samples": 64, "val_samples": 20, "batch_size_per_device": 16}
RESNET = {**SMALL, "net": "cifar_resnet20_v1", "learning_rate": 0.01}
TRAINED = [card.name for card in METHODS if card.kind != "recipe"]
PARAMS = {
    "whitening-init": {"images": 32, "freeze": True},
    "lookahead": {"k": 2},
    "selective-backprop": {"start": 0.0, "end": 1.0},
    "flip-validation": {"shift": 1},
    "batch-growth": {"start": 0.5},
    "layer-freezing": {"start": 0.0, "end": 0.5, "stages": 2},
}


def built(backend, recipe):
    """A session in this process, which has both engines: a process of its own takes seconds to start."""
    from gluontune.engines.torch import export as torch_export, session as torch_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_export, "exported", export_job)
        session = (torch_session.session_of if backend == "torch" else Session)(recipe)
        session.build()
    return session


def train(backend="mxnet", **fields):
    recipe = Recipe(**{**RESNET, **fields, "backend": backend})
    found = SimpleNamespace(train_loss=[], val_loss=[], values=[], flipped=[])
    session = built(backend, recipe)
    for _ in range(int(recipe.epochs)):
        found.train_loss.append(session.steps(session.batches_per_epoch)["loss"])
        checked = session.validate()
        found.val_loss.append(checked["loss"])
        found.values.append(checked["metric"]["value"])
        found.flipped += [checked["flipped"]] if checked["flipped"] is not None else []
    session.close()
    return found


@pytest.fixture(scope="module")
def plain():
    return {backend: train(backend) for backend in ("mxnet", "torch")}


@pytest.mark.process
@pytest.mark.parametrize("name", TRAINED)
def test_both_engines_train_it_alike_and_it_changes_something(name, plain):
    chosen = {name: PARAMS.get(name, True)}
    found = {backend: train(backend, methods=chosen) for backend in plain}
    ours, theirs = (found[b].train_loss[0] for b in ("mxnet", "torch"))
    assert theirs == pytest.approx(ours, rel=0.02), "the same start, batches and rates"
    kind = METHODS[name].kind
    same = found["mxnet"].train_loss == plain["mxnet"].train_loss
    assert same == (kind == "validation" or name == "ema")
    if name == "ema":
        assert found["mxnet"].val_loss != plain["mxnet"].val_loss
    assert [len(found[b].flipped) for b in plain] == [kind == "validation"] * 2
    if kind == "validation":
        assert found["mxnet"].values == plain["mxnet"].values, "reported apart"


@pytest.mark.process
@pytest.mark.parametrize("backend", ["mxnet", pytest.param("torch", marks=pytest.mark.slow)])  # see test_torch.py
@pytest.mark.parametrize(
    "methods",
    [
        {"ema": {"decay": 0.9}, "mixup": True, "batch-growth": {"start": 0.25, "factor": 3}},
        pytest.param({"lookahead": {"k": 3}, "layer-freezing": {"start": 0.2, "end": 0.2}}, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_ends_as_one_that_was_never_stopped(tmp_path, backend, methods):
    def stop(now):
        if now.event == "steps_end" and now.steps >= 5:
            now.stop("half")

    recipe = Recipe(**{**RESNET, "net": "mlp", "epochs": 3, "backend": backend, "methods": methods})
    kept = gt.train.Checkpoints(str(tmp_path / "half"), every="1steps", resume=True)
    gt.train.run(recipe, checkpoints=kept, callbacks=[stop])
    resumed = gt.train.run(recipe, checkpoints=kept)
    there = gt.train.Checkpoints(str(tmp_path / "whole"))
    whole = gt.train.run(recipe, checkpoints=there)
    assert resumed.val_loss[-1] == whole.val_loss[-1] and resumed.steps == whole.steps == 12
    ours, theirs = (gt.train.load(tmp_path / part) for part in ("half", "whole"))
    for a, b in zip(ours.collect_params().values(), theirs.collect_params().values()):
        assert (a.data().asnumpy() == b.data().asnumpy()).all()


@pytest.mark.process
@pytest.mark.parametrize("backend", ["mxnet", "torch"])
def test_flips_of_the_last_validation_alone_are_those_of_each(backend):
    found = [
        train(backend, net="mlp", epochs=2, methods={"flip-validation": {"shift": 1, "last": last}})
        for last in (False, True)
    ]
    assert len(found[0].flipped) == 2 and found[1].flipped == found[0].flipped[1:]
    assert found[0].values == found[1].values


def test_what_is_not_asked_for_changes_nothing(plain):
    assert train(methods={}).train_loss == plain["mxnet"].train_loss
    assert Recipe().methods == {} and not plain["mxnet"].flipped


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"methods": {"mixupp": True}}, "mixup"),
        ({"methods": {"mixup": {"alpha": 0}}}, "alpha=0"),
        ({"methods": {"mixup": {"beta": 1}}}, "it has alpha"),
        ({"methods": {"cutout": {"length": 2.5}}}, "whole number"),
        ({"methods": {"whitening-init": {"freeze": 1}}}, "true or false"),
        ({"methods": {"mixup": 0.3}}, "give true, or a mapping"),
        ({"methods": {"muon": True}}, "optimizer='muon'"),
        ({"methods": ["mixup"]}, "mapping of names"),
        ({"methods": {"mixup": True, "cutmix": True}}, "mixup and cutmix contradict"),
        ({"methods": {"ema": True, "lookahead": True}}, "ema and lookahead contradict"),
        ({"methods": {"cutout": True}, "loader": "gluon"}, "loader='resident'"),
        ({"augment": "pad-crop-alternating-flip", "loader": "gluon"}, "neither sample nor epoch"),
        ({"methods": {"ema": True}, "engine": "async", "num_devices": 2}, "train apart"),
        ({"methods": {"selective-backprop": True}, "accumulate": 2}, "accumulate=1"),
        ({"methods": {"layer-freezing": True}, "accumulate": 2}, "which gradients there are"),
        ({"methods": {"batch-growth": {"factor": 1}}}, "factor=1"),
        ({"methods": {"batch-growth": True}, "dtype": "float16"}, "several steps"),
        ({"methods": {"batch-growth": True}, "engine": "async", "num_devices": 2}, "several steps"),
        ({"methods": {"batch-growth": True, "selective-backprop": True}}, "contradict"),
        ({"methods": {"layer-freezing": True}, "engine": "shared-memory", "num_devices": 2}, "one device"),
    ],
)
def test_bad_input_is_told_with_the_way_out(fields, said):
    with pytest.raises((UsageError, UnknownNameError)) as told:
        Recipe(**{"loader": "resident", **fields})
    assert said in str(told.value)


@pytest.mark.process
def test_a_net_or_job_that_a_method_does_not_fit_is_refused(tmp_path, reused):
    for methods, said in (({"squeeze-excite": True}, "no residual block"), ({"dirac-init": True}, "no convolution")):
        failed = gt.train.run(Recipe(**{**SMALL, "net": "mlp", "methods": methods}), site=reused.site)
        assert said in failed.error["message"] and "methods" in failed.error["message"]
    job = tmp_path / "job.py"
    job.write_text(
        "from mxnet import gluon\n\nloss = gluon.loss.SoftmaxCrossEntropyLoss()\n\n\n"
        "def step(net, x, y):\n    return loss(net(x), y)\n"
    )
    own = Recipe(**{**SMALL, "net": "mlp", "job": str(job), "methods": {"label-smoothing": True}})
    assert "step() computes its own loss" in gt.train.run(own, site=reused.site).error["message"]


def test_a_loop_of_ones_own_is_told_where_methods_run():
    with pytest.raises(UsageError, match="steps of gluontune's loop"):
        gt.tuned(Recipe(loader="resident", methods={"mixup": True}), gt.train.build_net("mlp", 10), "sample")


def test_smoothing_is_the_cross_entropy_with_a_softened_target():
    mx = mxnet()
    scores, label = mx.nd.random.normal(shape=(5, 7)), mx.nd.array([0, 6, 3, 3, 1])
    target = mx.nd.one_hot(label, 7) * 0.8 + 0.2 / 7
    plain_loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    found = losses.smoothed(plain_loss, lambda s, axis: mx.nd.log_softmax(s, axis=axis), 0.2)(scores, label)
    wanted = mx.gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)(scores, target)
    assert np.allclose(found.asnumpy(), wanted.asnumpy(), atol=1e-5)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_blended_labels_weigh_what_the_images_hold(name):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8), np.arange(6)
    before = images.copy()
    chosen = {name: {"alpha": 1.0}}
    mixed, blended = batches.change_batch(chosen, images, labels, (3, 1, 0, 4), np.zeros(3, np.uint8), 0.0)
    share = blended[0, 2]
    assert (images == before).all() and blended[:, 0].tolist() == list(range(6)) and 0 < share < 1
    other = images[blended[:, 1].astype(int)]
    if name == "mixup":
        wanted = images * share + other * (1 - share)
        assert np.abs(mixed - wanted).max() <= 0.5 + 1e-3
    else:
        taken = (mixed != images).any(axis=(0, 3))
        assert taken.mean() == pytest.approx(1 - share, abs=1e-6) and (mixed[:, taken] == other[:, taken]).all()
    scores = rng.normal(size=(6, 6))
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    target = np.eye(6) * share + np.eye(6)[blended[:, 1].astype(int)] * (1 - share)
    loss = losses.mixed(lambda output, label: -output[np.arange(6), label.astype(int)])(logs, blended)
    assert np.allclose(loss, -(target * logs).sum(1), atol=1e-6)


def test_cutout_covers_a_square_around_any_pixel():
    images = np.ones((4000, 8, 8, 1), np.uint8)
    cut = batches.cutout(images, 4, generator(1)) == 0
    assert cut.sum((1, 2, 3)).max() == 16 and cut.sum((1, 2, 3)).min() == 4, "a corner keeps a quarter of the square"
    assert images.all()


def test_images_grow_in_a_straight_line_and_keep_their_mean():
    scales = [batches.scale_of(p / 10, 0.5, 0.2, 0.7) for p in range(11)]
    assert scales[:3] == [0.5] * 3 and scales[7:] == [1.0] * 4 and np.allclose(np.diff(scales[2:8]), 0.1)
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    small = batches.resized(images, 0.5, 4)
    blocks = images.reshape(2, 16, 2, 16, 2, 3).astype(float).mean((2, 4))
    assert np.abs(small - blocks).max() <= 0.75
    assert batches.resized(images, 1.0, 4) is images


def test_the_average_of_the_weights_is_the_weighted_sum_of_its_past():
    average, live = losses.Ema(0.6), {"w": np.zeros(3)}
    average.begin(live)
    wanted = 0.0
    for step in range(1, 30):
        live["w"][:] = step
        average.after_update(live, live.__setitem__)
        stays = min(0.6, (1 + step) / (10 + step))
        wanted = stays * wanted + (1 - stays) * step
    assert np.allclose(average.held["w"], wanted)
    average.swap(live, live.__setitem__)
    assert np.allclose(live["w"], wanted)
    average.swap(live, live.__setitem__)
    assert live["w"].tolist() == [29.0] * 3


def test_high_losses_are_chosen_more_often_and_always_as_many():
    found = [losses.selected(np.arange(20.0), 0.3, generator(seed)) for seed in range(400)]
    assert {len(set(each.tolist())) for each in found} == {6}
    counts = np.bincount(np.concatenate(found), minlength=20)
    assert counts[:5].sum() < 0.1 * counts.sum() < counts[15:].sum() / 3


@pytest.mark.process
@pytest.mark.parametrize("hybridize", ["imperative", "static"])
def test_a_frozen_layer_stays_as_it_is_until_the_training_begins_anew(hybridize):
    from gluontune.engines.mxnet.session import Session

    chosen = {"layer-freezing": {"start": 0.5, "end": 0.5, "level": 0.4}}
    session = Session(Recipe(**{**RESNET, "net": "mlp", "hybridize": hybridize, "methods": chosen}))
    session.build()
    params = list(session.work.net.collect_params().values())
    values = []
    for _again in range(2):
        for count in (2, 1, 1):
            session.steps(count)
            values.append([p.data().asnumpy() for p in params])
        stood = [[bool((a == b).all()) for a, b in zip(*pair)] for pair in zip(values[:-1], values[1:])][-2:]
        assert stood == [[True] * 2 + [False] * 4] * 2, "two of four steps are over: the first layer stops"
        assert [p.grad_req for p in params] == ["null"] * 2 + ["write"] * 4
        session.reset()
        assert {p.grad_req for p in params} == {"write"}
    assert all((a == b).all() for first, second in zip(values[:3], values[3:]) for a, b in zip(first, second))
    session.close()


@pytest.mark.process
@pytest.mark.parametrize("backend", ["mxnet", "torch"])
@pytest.mark.parametrize("optimizer", ["nag", "muon"])
def test_a_batch_that_is_twice_as_large_from_the_start_is_one_of_two_gathered_steps(backend, optimizer):
    same = {"optimizer": optimizer, "lr_scaling": "none", "schedule": "poly", "wd": 1e-4, "epochs": 2}
    same.update(schedule_params={"pwr": 1}, net="mlp", backend=backend)
    grown = train(methods={"batch-growth": {"start": 0.0}}, **same)
    gathered = train(accumulate=2, **same)
    assert grown.val_loss == gathered.val_loss and grown.train_loss == gathered.train_loss
    assert grown.val_loss != train(**same).val_loss


@settings(deadline=None)  # a busy machine is not the code's
@given(st.integers(1, 60), st.integers(1, 4), st.floats(0, 1), st.integers(2, 5), st.integers(0, 4))
def test_the_updates_of_a_growing_batch_are_whole_and_the_rate_follows_the_images(
    total, accumulate, start, factor, times
):
    plan = UpdatePlan(total, accumulate, start, factor, times)
    ends, rate = [], schedules.poly(base_lr=1.0, max_update=total / accumulate, pwr=1)
    stretched = schedules.stretch(rate, growth=plan.growth())
    step = 0
    while step < total:
        sizes = {plan.size(step + k) for k in range(plan.size(step))}
        assert sizes == {plan.size(step)}, "no change within an update"
        step += plan.size(step)
        ends.append(step)
        assert plan.updates(step) == len(ends) and plan.updates(step - 1) == len(ends) - 1
        assert stretched(len(ends)) == pytest.approx(rate(step / accumulate), abs=1e-9)
    assert [s for s in range(1, step + 1) if plan.complete(s)] == ends


def test_whitened_patches_are_uncorrelated_with_variance_one():
    rng = np.random.default_rng(0)
    images = np.cumsum(rng.normal(size=(40, 3, 12, 12)), axis=3)
    filters = nets.whitening_filters(images, 3, 3, 0.0)
    views = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(2, 3)).transpose(0, 2, 3, 1, 4, 5)
    given = views.reshape(-1, 27) @ filters.reshape(-1, 27).T
    assert np.allclose(np.cov(given, rowvar=False, bias=True), np.eye(27), atol=1e-3)


def test_the_blur_is_the_binomial_filter():
    from gluontune.methods._blocks import _blurred

    mx = mxnet()
    x = mx.nd.random.normal(shape=(1, 2, 9, 9))
    kernel = mx.nd.array(np.outer([1, 2, 1], [1, 2, 1])[None, None].repeat(2, 0) / 16)
    for stride in (1, 2):
        wanted = mx.nd.Convolution(
            x, kernel, no_bias=True, num_filter=2, num_group=2, kernel=(3, 3), pad=(1, 1), stride=(stride, stride)
        )
        assert np.allclose(_blurred(mx.nd, x, stride).asnumpy(), wanted.asnumpy(), atol=1e-5)
    net = mx.gluon.model_zoo.vision.resnet18_v1(classes=10)
    net.initialize()
    shapes = [net.features[:4](mx.nd.ones((1, 3, 33, 33))).shape]
    assert nets.add_blurpool(net) == 7
    shapes.append(net.features[:4](mx.nd.ones((1, 3, 33, 33))).shape)
    assert shapes[0] == shapes[1] and net(mx.nd.ones((1, 3, 64, 64))).shape == (1, 10)


def test_squeeze_and_excite_scales_each_channel_by_one_number():
    from gluontune.methods._blocks import SqueezeExcite

    mx = mxnet()
    block, x = SqueezeExcite(4, 2), mx.nd.random.uniform(0.5, 1, shape=(3, 4, 5, 5))
    block.initialize(mx.init.Normal(1.0))
    ratio = (block(x) / x).asnumpy()
    assert np.allclose(ratio, ratio[:, :, :1, :1], atol=1e-5)
    w = {name: p.data().asnumpy() for name, p in block._collect_params_with_prefix().items()}
    means = x.asnumpy().mean((2, 3))
    hidden = np.maximum(means @ w["squeeze.weight"].T + w["squeeze.bias"], 0)
    wanted = 1 / (1 + np.exp(-(hidden @ w["excite.weight"].T + w["excite.bias"])))
    assert np.allclose(ratio[:, :, 0, 0], wanted, atol=1e-5)
    block.hybridize()
    assert np.allclose((block(x) / x).asnumpy(), ratio, atol=1e-5)


def test_shifted_views_are_those_of_airbench():
    torch = pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")
    images = torch.randn(2, 3, 6, 6)
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1), "reflect")
    wanted = [images, padded[:, :, 0:6, 0:6], padded[:, :, 2:8, 2:8]]
    wanted = [view for each in wanted for view in (each, each.flip(-1))]
    views = losses.flipped_views(6, 6, 1)
    assert [weight for weight, _, _ in views] == [0.25, 0.25, 0.125, 0.125, 0.125, 0.125]
    for (_, rows, columns), view in zip(views, wanted):
        assert (images[:, :, rows][:, :, :, columns] == view).all()


def test_an_alternating_flip_shows_both_sides_in_two_epochs():
    split = gt.datasets.open("sample").train
    for name in ("resident", "threaded"):
        with build(
            name, split, batch_size=64, image_shape=(28, 28, 1), augment="pad-crop-alternating-flip", seed=5
        ) as loader:
            index = np.arange(64)
            first, second, third = (loader.draws(epoch, 0, index).flip for epoch in range(3))
            assert (first != second).all() and (first == third).all() and 10 < first.sum() < 54
            assert (loader.draws(0, 1, index[::-1]).flip == first[::-1]).all(), "of the sample, not of the place"


def test_a_transform_sees_each_batch_once_with_its_number():
    split = gt.datasets.open("sample").train
    with build("resident", split, batch_size=500, image_shape=(28, 28, 1)) as loader:
        seen = []
        loader.transform = lambda images, labels, epoch, number: (images, seen.append((epoch, number)) or labels)
        state = None
        for place, _ in enumerate(loader.epoch(1)):
            state = loader.state() if place == 2 else state
        loader.restore(state)
        list(loader.epoch(1))
    count = len(split) // 500
    assert seen == [(1, n) for n in [*range(count), *range(3, count)]]


def test_methods_that_other_fields_say_are_factors_too():
    base = Recipe(loader="resident", rewrites=["pool-to-mean"])
    changed = with_methods(base, ["channels-padding", "muon", "alternating-flip", "ema"])
    assert changed.rewrites == ("pool-to-mean", "pad-channels") and changed.methods == {"ema": True}
    assert (changed.optimizer, changed.augment) == ("muon", "pad-crop-alternating-flip")
    assert numbers_of(changed.methods, "weights") == {"ema": {"decay": 0.998, "every": 1}}


@pytest.mark.slow
@pytest.mark.process
def test_the_command_compares_resumes_and_shows(tmp_path):
    command = [
        sys.executable,
        "-m",
        "gluontune",
        "factors",
        "--methods",
        "ema,mixup,squeeze-excite",
        "--target",
        "0.05",
    ]
    command += ["--repeats", "2", "--net", "mlp", "--train-samples", "256", "--val-samples", "100", "--json"]
    command += ["--out", str(tmp_path), "--best", "2"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    verdicts = {row["name"]: row["verdict"] for row in found["methods"]}
    assert verdicts["squeeze-excite"] == "failed" and found["complete"] and len(found["sets"]) >= 4
    runs = len(found["done"])
    again = json.loads(subprocess.run([*command, "--resume"], check=True, capture_output=True).stdout)
    assert len(again["done"]) == runs, "nothing is trained twice"
    page = (tmp_path / "factors.html").read_text()
    assert "Base ÷ method" in page and "squeeze-excite" in page
    wrong = subprocess.run([*command[:-5], "--target", "0.1"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "one --target" in wrong.stderr


def test_cards_say_what_one_must_know():
    for card in METHODS:
        assert all((card.summary, card.source, card.when, card.when_not, card.cost)), card.name
        numbers = {n for n, v in card.defaults.items() if not isinstance(v, bool)}
        assert set(card.bounds) == numbers, card.name
        if card.kind != "recipe":
            card.check(dict(card.defaults))
    assert len(METHODS.names()) == 22
