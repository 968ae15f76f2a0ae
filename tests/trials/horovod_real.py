"""Horovod for real: ``make horovod`` builds it and then runs these."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from launch_faults import FAULTS, fault_trial, restart_trial, undisturbed

from gluontune.train import Group

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from ranks import TWO, check_that_it_resumes, parameters_after

SMALL = TWO.override(engine="horovod")


def test_two_ranks_are_one_process_with_the_whole_batch(tmp_path):
    two = parameters_after(SMALL, 20, tmp_path / "two")
    alone = SMALL.override(engine="local", num_devices=1, batch_size_per_device=64)
    one = parameters_after(alone, 20, tmp_path / "one")
    assert len(one) == 6 and max(np.abs(one[name] - two[name]).max() for name in one) <= 1e-5


def test_a_run_learns_and_resumes_as_if_it_had_not_been_stopped(tmp_path):
    check_that_it_resumes(SMALL, tmp_path)


def test_a_killed_rank_ends_all_and_is_named():
    seen = fault_trial(*FAULTS["horovod rank killed"])
    assert seen["named"] and seen["seconds"] <= 30 and not seen["orphans"], seen


def test_averages_of_parameters_are_those_of_the_parameter_server_and_fp16_is_near(tmp_path):
    seldom = SMALL.override(exchange_every=3)
    ring = parameters_after(seldom, 9, tmp_path / "ring")
    server = parameters_after(seldom.override(engine="kvstore"), 9, tmp_path / "server")
    assert max(np.abs(ring[name] - server[name]).max() for name in ring) <= 1e-5
    whole = parameters_after(SMALL, 9, tmp_path / "whole")
    half = parameters_after(SMALL.override(compression="fp16"), 9, tmp_path / "half")
    gaps = [np.abs(whole[name] - half[name]).max() for name in whole]
    assert 0 < max(gaps) <= 1e-2


def test_a_group_that_is_paused_for_longer_than_gloos_own_limit_goes_on():
    with Group(SMALL) as group:
        group.steps(2)
        group.pause()
        time.sleep(40)  # Gloo's default is 30 s
        group.resume()
        assert group.steps(2)["count"] == 2


def test_a_hung_rank_ends_all_and_is_named():
    seen = fault_trial(*FAULTS["horovod rank hung"])
    assert seen["named"] and seen["seconds"] <= 30 and not seen["orphans"], seen


def test_a_restart_ends_with_the_accuracy_of_a_run_left_alone():
    seen = restart_trial(*FAULTS["horovod rank killed"])
    assert seen["accuracies"] == undisturbed("horovod")["accuracies"]
    assert any("restarted after a fault: rank 1" in note for note in seen["notes"])
