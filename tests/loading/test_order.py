"""Which samples make which batch: every property that training relies on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gluontune.core.errors import UsageError
from gluontune.loading import AUGMENTS, Order
from gluontune.loading.augment import centred_box, random_box
from gluontune.loading.base import generator

orders = st.builds(
    dict,
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 17),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**40),
    world_size=st.integers(1, 5),
)


def make(last_batch: str, rank: int, arguments: dict) -> Order:
    return Order(last_batch=last_batch, rank=rank, **arguments)


@settings(deadline=None, max_examples=60)
@given(orders, st.sampled_from(["keep", "discard", "rollover"]), st.integers(0, 5))
def test_ranks_have_equal_batch_counts_and_share_the_samples(arguments, last_batch, epoch):
    world, samples = arguments["world_size"], arguments["samples"]
    ranks = []
    for rank in range(world):
        try:
            ranks.append(make(last_batch, rank, arguments))
        except UsageError:
            assert samples // world < (arguments["batch_size"] if last_batch == "discard" else 1)
            return
    batches = [order.batches(epoch) for order in ranks]
    assert len({len(b) for b in batches}) == 1
    assert [order.num_batches(epoch) for order in ranks] == [len(b) for b in batches]
    flat = np.concatenate([i for b in batches for i in b]) if batches[0] else np.zeros(0, np.int64)
    assert ((flat >= 0) & (flat < samples)).all()
    if last_batch == "keep":
        assert set(flat.tolist()) == set(range(samples))
        assert len(flat) - samples < world
    elif last_batch == "discard":
        assert len(set(flat.tolist())) == len(flat)
        assert all(len(i) == arguments["batch_size"] for b in batches for i in b)


@settings(deadline=None, max_examples=100)
@given(orders, st.sampled_from(["keep", "discard", "rollover"]), st.integers(0, 3))
def test_ranks_that_draw_from_the_whole_data_set_have_equal_batch_counts_too(arguments, last_batch, epoch):
    arguments = {**arguments, "shuffle": True, "partition": "whole"}
    try:
        ranks = [make(last_batch, rank, arguments) for rank in range(arguments["world_size"])]
    except UsageError:
        return
    batches = [order.batches(epoch) for order in ranks]
    assert len({len(b) for b in batches}) == 1
    assert [order.num_batches(epoch) for order in ranks] == [len(b) for b in batches]
    if last_batch != "rollover":  # whose batches may span two epochs
        for own in batches:
            flat = np.concatenate(own) if own else np.zeros(0)
            assert len(set(flat.tolist())) == len(flat)


def test_whole_draws_differ_between_ranks_and_cover_all_in_time():
    ranks = [Order(1000, 10, shuffle=True, rank=r, world_size=2, partition="whole") for r in (0, 1)]
    first, second = (set(order.indices(0).tolist()) for order in ranks)
    assert len(first) == len(second) == 500 and 150 < len(first & second) < 350
    assert len(set().union(*(ranks[0].indices(e).tolist() for e in range(20)))) == 1000
    with pytest.raises(UsageError, match="shuffle=True"):
        Order(1000, 10, world_size=2, partition="whole").indices(0)


@settings(deadline=None, max_examples=100)
@given(orders)
def test_rollover_loses_and_repeats_nothing(arguments):
    try:
        order = make("rollover", arguments["world_size"] - 1, arguments)
    except UsageError:
        assert arguments["samples"] < arguments["world_size"]
        return
    served = [i for epoch in range(7) for batch in order.batches(epoch) for i in batch.tolist()]
    stream = [i for epoch in range(7) for i in order.indices(epoch).tolist()]
    assert served == stream[: len(served)]
    assert len(stream) - len(served) < order.batch_size


def test_shuffling_depends_on_seed_and_epoch_alone():
    first, again = Order(100, 10, True, seed=3), Order(100, 25, True, seed=3)
    assert np.array_equal(first.indices(4), again.indices(4))
    assert not np.array_equal(first.indices(4), first.indices(5))
    assert not np.array_equal(first.indices(4), Order(100, 10, True, seed=4).indices(4))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"samples": 10, "batch_size": 0}, "batch_size=0"),
        ({"samples": 10, "batch_size": 11}, "batch_size=11"),
        ({"samples": 0, "batch_size": 1}, "empty"),
        ({"samples": 10, "batch_size": 1, "last_batch": "drop"}, "last_batch='drop'"),
        ({"samples": 10, "batch_size": 1, "rank": 2, "world_size": 2}, "rank=2"),
        ({"samples": 1, "batch_size": 1, "world_size": 2}, "world_size=2"),
        ({"samples": 10, "batch_size": 1, "seed": -1}, "seed=-1"),
    ],
)
def test_what_cannot_work_is_named(arguments, names):
    with pytest.raises(UsageError, match=names):
        Order(**arguments)


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 2**32))
def test_boxes_lie_inside_the_image(height, width, seed):
    tries = generator(seed).random((10, 4)).tolist()
    for top, left, h, w in (
        random_box(tries, height, width),
        centred_box(height, width, 224, 224),
        centred_box(height, width, 64, 32, 0.875),
    ):
        assert top >= 0 and left >= 0 and h >= 1 and w >= 1
        assert top + h <= height and left + w <= width


def test_random_boxes_have_the_area_and_ratio_that_were_asked_for():
    rng = generator(0)
    boxes = np.array([random_box(rng.random((10, 4)).tolist(), 1000, 1000) for _ in range(3000)])
    area, ratio = boxes[:, 2] * boxes[:, 3] / 1e6, boxes[:, 3] / boxes[:, 2]
    assert 0.079 < area.min() < 0.1 and 0.9 < area.max() <= 1
    assert 0.45 < area.mean() < 0.51  # uniform on 0.08 ... 1, less large ones that did not fit
    assert 0.74 < ratio.min() < 0.77 and 1.3 < ratio.max() < 1.34
    assert abs(np.log(ratio).mean()) < 0.02


def test_draws_of_every_augmentation_are_what_it_says():
    for augment in AUGMENTS:
        draws = augment.draw(generator(1), 4000)
        assert augment.random == any(v is not None for v in vars(draws).values())
        if augment.flip:
            assert 0.46 < draws.flip.mean() < 0.54
        if augment.geometry == "pad-crop":
            assert set(np.unique(draws.offsets)) == set(range(2 * augment.pad + 1))
