"""A thousand ranks, simulated by their orders alone: each sample once, in one order, whatever the number of ranks."""

from __future__ import annotations

import numpy as np
import pytest

from gluontune.loading import Order

WORLD, SAMPLES, BATCH = 1000, 20_000, 4


def ranks(world, batch=BATCH, samples=SAMPLES, **options):
    return [Order(samples, batch, shuffle=True, seed=3, rank=r, world_size=world, **options) for r in range(world)]


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_an_epoch_has_each_sample_once_and_no_two_ranks_share_one(epoch):
    parts = [order.indices(epoch) for order in ranks(WORLD)]
    together = np.concatenate(parts)
    assert {len(part) for part in parts} == {SAMPLES // WORLD}
    assert np.array_equal(np.sort(together), np.arange(SAMPLES))


def test_ranks_that_do_not_divide_the_samples_repeat_or_leave_less_than_one_each():
    for keep in ("keep", "discard"):
        parts = np.concatenate([order.indices(0) for order in ranks(WORLD, samples=SAMPLES + 1, last_batch=keep)])
        counts = np.bincount(parts, minlength=SAMPLES + 1)
        if keep == "keep":  # filled up from the front, so that all have equally many
            assert counts.min() == 1 and counts.sum() == WORLD * (SAMPLES // WORLD + 1)
        else:
            assert counts.max() == 1 and (counts == 0).sum() == 1


def test_the_order_is_one_for_any_number_of_ranks():
    """Step by step, the ranks together take what one process with the whole batch takes."""
    (alone,) = ranks(1, batch=WORLD * BATCH)
    many = [order.batches(0) for order in ranks(WORLD)]
    for step, whole in enumerate(alone.batches(0)):
        dealt = np.stack([batches[step] for batches in many], axis=1).ravel()  # sample k of all ranks, then k + 1
        assert np.array_equal(dealt, whole)


def test_another_epoch_and_another_seed_are_other_orders_and_the_same_are_the_same():
    first = [order.indices(0) for order in ranks(WORLD)]
    assert all(np.array_equal(a, order.indices(0)) for a, order in zip(first, ranks(WORLD)))
    other = [order.indices(1) for order in ranks(WORLD)]
    assert sum(np.array_equal(a, b) for a, b in zip(first, other)) == 0


@pytest.mark.parametrize("world", [1, 7, 250, 999])
def test_a_resume_with_another_number_of_ranks_sees_each_sample_of_its_epoch_once(world):
    """A run that goes on with other machines begins its epoch anew: no sample of it is twice or missing."""
    before = np.concatenate([order.indices(4) for order in ranks(WORLD)])
    after = np.concatenate([order.indices(4) for order in ranks(world, last_batch="keep")])
    counts = np.bincount(after, minlength=SAMPLES)
    assert counts.min() == 1 and counts.sum() - SAMPLES < world
    assert np.array_equal(np.sort(before), np.arange(SAMPLES))


def test_what_is_left_in_mid_epoch_is_what_no_rank_has_had():
    done = np.concatenate([np.concatenate(order.batches(2)[:2]) for order in ranks(WORLD, batch=4)])
    left = np.concatenate([np.concatenate(order.batches(2)[2:]) for order in ranks(WORLD, batch=4)])
    assert len(done) == 8 * WORLD and np.array_equal(np.sort(np.concatenate([done, left])), np.arange(SAMPLES))
