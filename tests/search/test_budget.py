"""What owns the time, what ends a contest, when lost accuracy is believed: by clocks and figures that are given."""

from __future__ import annotations

import random

import pytest

from gluontune.core.errors import UsageError
from gluontune.search.budget import Budget, BudgetSpent, fit_epochs, parse_budget
from gluontune.search.judge import loss_of
from gluontune.search.sequential import LOOKS, ratio_at_look


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_shares_follow_the_weights_and_keep_the_proof_back():
    clock = Clock()
    budget = Budget(300.0, clock)
    still = ["environment", "records", "large-batch"]
    shares = {name: budget.share_s(name, still) for name in still}
    assert shares["large-batch"] > shares["records"] > shares["environment"] > 0
    assert sum(shares.values()) < budget.free_s < 300 * 0.8
    clock.now = 290.0
    assert budget.free_s < 0 and budget.share_s("records", still) == 0 and not budget.affords(0.1)
    budget.release_proof()
    assert budget.affords(9.0) and not budget.affords(11.0)


def test_what_one_rung_saves_the_others_get():
    clock = Clock()
    budget = Budget(300.0, clock)
    still = ["environment", "records", "large-batch"]
    planned = budget.share_s("large-batch", still)
    clock.now = 10.0  # the first two took less than their shares
    assert budget.share_s("large-batch", still[2:]) > planned


def test_waiting_for_others_has_an_end_over_the_whole_climb():
    clock = Clock()
    budget = Budget(200.0, clock)

    def sleep(seconds):
        clock.now += seconds

    assert not budget.wait(lambda: True, sleep)
    assert 9.0 <= clock.now <= 12.0
    before = clock.now
    assert not budget.wait(lambda: True, sleep) and clock.now == before
    assert budget.wait(lambda: False, sleep)


def test_a_deadline_raises_after_its_time_and_never_after_the_budget():
    clock = Clock()
    budget = Budget(100.0, clock)
    check = budget.deadline(20.0)
    clock.now = 19.0
    check()
    clock.now = 21.0
    with pytest.raises(BudgetSpent):
        check()
    check = budget.deadline(500.0)
    clock.now = 101.0
    with pytest.raises(BudgetSpent):
        check()


@pytest.mark.parametrize("text", ["", "5 minutes or so", "-3m", "5x", "10s", "m"])
def test_a_budget_that_makes_no_sense_is_refused(text):
    with pytest.raises(UsageError, match="--budget"):
        parse_budget(text)


def test_trainings_are_shortened_to_their_part_of_the_budget():
    long = fit_epochs(4.0, batches_per_epoch=156, step_s=0.2, validation_s=3.0, budget_s=300)
    assert long is not None and long < 2 and long * 156 * 0.2 + 3 <= 0.16 * 300
    assert fit_epochs(2.0, batches_per_epoch=156, step_s=0.01, validation_s=1.0, budget_s=300) == 2.0


def _contest(rng, ratio, noise):
    """The interval of the first look that decides, or of the last."""
    mine, theirs = [], []
    for n in range(1, LOOKS[-1] + 1):
        mine.append(ratio * rng.lognormvariate(0, noise))
        theirs.append(rng.lognormvariate(0, noise) * (0.5 if rng.random() < 0.03 else 1.0))
        if n in LOOKS:
            found = ratio_at_look(mine, theirs)
            if found["ci95"][0] > 1 or found["ci95"][1] < 1:
                return n, found
    return n, found


def test_looking_again_and_again_keeps_the_error():
    rng = random.Random(7)
    wrong = sum(_contest(rng, 1.0, 0.1)[1]["ci95"][0] > 1 for _ in range(100))
    wrong += sum(_contest(rng, 1.0, 0.1)[1]["ci95"][1] < 1 for _ in range(100))
    assert wrong <= 7  # 5 % for both sides together; slices that others disturbed among them


def test_clear_gains_take_few_slices_and_small_ones_more():
    rng = random.Random(3)
    clear = [_contest(rng, 1.6, 0.04) for _ in range(50)]
    assert all(found["ci95"][0] > 1 for _, found in clear)
    assert sum(n for n, _ in clear) / 50 < 7
    small = [_contest(rng, 1.08, 0.06) for _ in range(50)]
    assert sum(found["ci95"][0] > 1 for _, found in small) > 30
    assert sum(n for n, _ in small) > sum(n for n, _ in clear)


def test_few_slices_claim_nothing():
    assert ratio_at_look([3.0, 3.0, 3.0], [1.0, 1.0, 1.0])["ci95"][0] == 0.0


def test_accuracy_lost_within_the_noise_is_no_loss():
    assert not loss_of([0.80], [0.78], 2000).certain(0.02)  # two points, and 2,000 images
    assert loss_of([0.80], [0.70], 2000).certain(0.02)
    assert not loss_of([0.60], [0.55], 500).certain(0.02)
    # Runs that differ among themselves: the spread between them is the noise that counts.
    assert not loss_of([0.70, 0.58, 0.66, 0.61], [0.55, 0.60], 10_000).certain(0.02)
    assert loss_of([0.70, 0.702, 0.699], [0.60, 0.603], 10_000).certain(0.02)


def test_nobody_knows_what_a_job_of_unknown_size_lost_in_one_run():
    assert not loss_of([0.8], [0.5], None).certain(0.02)
    assert loss_of([0.8, 0.81, 0.79], [0.5], None).certain(0.02)
