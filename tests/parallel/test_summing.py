"""Sums over shared memory: the bits of the sum, ranks at different speeds, nets that differ, and real ranks."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from launch_faults import FAULTS, fault_trial
from ranks import TWO, check_that_it_resumes, parameters_after

from gluontune.core.errors import GluontuneError
from gluontune.parallel.shared import create
from gluontune.parallel.summing import SharedExchange, SharedSum
from gluontune.runtime import mxnet
from gluontune.train import Group

mx = mxnet()
SHARED = TWO.override(engine="shared-memory")


def together(world, work, **options):
    """``work(sum, rank)`` in a thread for each rank; what each returned or raised."""
    handle, path = create()
    members = [SharedSum(path, rank=rank, world=world, **options) for rank in range(world)]
    found = [None] * world

    def one(rank):
        try:
            found[rank] = work(members[rank], rank)
        except GluontuneError as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    for member in members:
        member.close()
    os.close(handle)
    return found


@settings(max_examples=25, deadline=None)
@given(world=st.integers(1, 5), lengths=st.lists(st.integers(1, 23), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_every_rank_gets_the_same_bits_of_the_sum_whoever_comes_late(world, lengths, seed):
    rng = np.random.default_rng(seed)
    brought = [[rng.normal(size=n).astype(np.float32) for n in lengths] for _ in range(world)]
    late = rng.integers(0, world, len(lengths))

    def work(member, rank):
        for place, values in enumerate(brought[rank]):
            if late[place] == rank:
                time.sleep(0.002)
            values = values.copy()
            member.add_up(values)
            yield values

    # 7 values in a round: longer ones take several, the last of them shorter
    found = together(world, lambda member, rank: list(work(member, rank)), capacity=7)
    for place, _ in enumerate(lengths):
        want = brought[0][place].copy()
        for rank in range(1, world):
            want += brought[rank][place]
        assert all(found[rank][place].tobytes() == want.tobytes() for rank in range(world))


def test_ranks_with_different_nets_are_told_so():
    found = together(2, lambda member, rank: member.add_up(np.ones(10 + rank, np.float32)))
    assert all("rank" in str(e) and "[10, 11]" in str(e) and "nets differ" in str(e) for e in found)


def test_a_rank_whose_starter_is_gone_does_not_wait_for_ever(monkeypatch):
    handle, path = create()
    lonely = SharedSum(path, rank=0, world=2)
    monkeypatch.setattr(os, "getppid", lambda: -1)  # the tests may be a child of process 1
    with pytest.raises(GluontuneError, match="started this rank is gone"):
        lonely.add_up(np.ones(3, np.float32))
    lonely.close()
    os.close(handle)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: mx.nd.ones((2,), dtype="float16"), "float16"),
        (lambda: mx.nd.ones((2, 2)).tostype("row_sparse"), "row_sparse"),
    ],
)
def test_arrays_that_it_cannot_sum_are_named_with_a_way_out(make, word):
    handle, path = create()
    exchange = SharedExchange(path, 0, 1)
    with pytest.raises(GluontuneError, match=f"{word}.*engine='kvstore'"):
        exchange.sum_gradients([make()])
    exchange.leave()
    os.close(handle)


def test_gradients_in_onednns_layout_are_summed_in_the_order_of_rows():
    handle, path = create()
    exchange = SharedExchange(path, 0, 1)
    conv = mx.gluon.nn.Conv2D(32, 3, in_channels=16)
    conv.initialize(mx.init.Xavier())
    x = mx.nd.random.uniform(shape=(4, 16, 8, 8))
    with mx.autograd.record():
        loss = (conv(x) ** 2).sum()
    loss.backward()
    grads = [conv.weight.grad(), conv.bias.grad()]
    want = [grad.copy().asnumpy() for grad in grads]
    exchange.sum_gradients(grads, factor=2.0)
    assert all((grad.asnumpy() == 2 * value).all() for grad, value in zip(grads, want))
    exchange.leave()
    os.close(handle)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """What one process has learned with the whole batch."""
    alone = TWO.override(engine="local", num_devices=1, batch_size_per_device=64)
    return parameters_after(alone, 20, tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_are_one_process_with_the_whole_batch(tmp_path, ranks, one, reused):
    recipe = SHARED.override(num_devices=ranks, batch_size_per_device=64 // ranks)
    several = parameters_after(recipe, 20, tmp_path, site=reused.site)
    assert len(one) == 6 and max(np.abs(one[name] - several[name]).max() for name in one) <= 1e-5


def test_averages_of_parameters_are_those_of_the_parameter_server(tmp_path, reused):
    seldom = SHARED.override(exchange_every=3)
    shared = parameters_after(seldom, 9, tmp_path / "shared", site=reused.site)
    server = parameters_after(seldom.override(engine="kvstore"), 9, tmp_path / "server")
    assert max(np.abs(shared[name] - server[name]).max() for name in shared) <= 1e-5


def test_a_run_learns_and_resumes_as_if_it_had_not_been_stopped(tmp_path, reused):
    check_that_it_resumes(SHARED, tmp_path, reused.site)


def test_a_group_starts_anew_and_measures_its_exchange(reused):
    with Group(SHARED, site=reused.site) as group:
        first = group.steps(3)["loss"]
        rows = group.exchange_alone([[1, 256], [3, 700_000]], 3)  # the second takes three rounds
        group.reset()
        assert group.steps(3)["loss"] == first
    assert [row["bytes"] for row in rows] == [1024, 8_400_000] and all(row["ms"] > 0 for row in rows)


def test_a_killed_rank_ends_all_and_is_named():
    seen = fault_trial(*FAULTS["shared-memory rank killed"])
    assert seen["named"] and seen["seconds"] <= 30 and not seen["orphans"], seen
