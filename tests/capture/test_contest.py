"""The contest of changes in place: a pretended training whose steps take what the state in force makes them take."""

from __future__ import annotations

import json
import random

import pytest

from gluontune.capture import contest as module
from gluontune.capture.contest import Contest
from gluontune.capture.helpers.base import Helper


class Training:
    """Steps with a clock of their own. ``seconds``: of a step by state; ``noise``: share of it."""

    def __init__(self, seconds, states=("fast",), noise=0.02, clashes=(), kept=None, trusted=""):
        self.seconds, self.now, self.waited = seconds, 0.0, 0
        self.random, self.noise = random.Random(0), noise
        self.helper = Pretended(list(states), clashes, trusted)
        self.contest = Contest([self.helper], clock=lambda: self.now, kept=kept)
        self.contest._waitall = self.wait
        self.used = []

    def wait(self):
        self.waited += 1

    def run(self, steps, pictures=0):
        """``pictures``: after so many steps the script does something else for five steps' time."""
        for step in range(steps):
            self.used.append(self.helper.state)
            self.now += self.seconds[self.helper.state] * (1 + self.random.uniform(0, self.noise))
            self.now += 5 * self.seconds[""] if pictures and step % pictures == 0 else 0
            self.contest.step()
        return self


class Pretended(Helper):
    name = "pretended"
    waits, took_over = False, False

    def __init__(self, states, clashes, trusted=""):
        self.trusted = trusted
        super().__init__()
        self.states, self.clashes, self.left = states, clashes, None

    def install(self, mx):
        pass

    def after_step(self, step, seconds):
        if self.state in self.clashes:
            raise ValueError("no good")

    def settled(self, left):
        self.left = left


def test_what_is_faster_is_kept_and_what_it_saved_is_told():
    done = Training({"": 0.1, "fast": 0.05}).run(200)
    assert done.helper.state == "fast" and [m.won for m in done.contest.matches] == [True]
    since = 200 - done.contest.matches[0].began_at
    assert done.contest.saved()["pretended"] == pytest.approx(0.05 * since, rel=0.1)
    assert done.waited and done.helper.left == []


def test_what_is_slower_is_taken_back_soon_and_said():
    done = Training({"": 0.1, "fast": 0.3}).run(200)
    assert done.helper.state == "" and done.contest.saved() == {} and done.used.count("fast") < 20
    assert done.helper.notes and "not kept" in done.helper.notes[0]


def test_what_is_in_force_before_its_match_is_measured_too():
    done = Training({"": 0.1, "fast": 0.05}, trusted="fast").run(200)
    assert done.used[0] == done.helper.state == "fast" and done.used.count("") < 30
    assert 0 < done.contest.lost_s < 0.05 * done.used.count("") * 1.1
    since = 200 - done.contest.matches[0].began_at
    assert done.contest.saved()["pretended"] == pytest.approx(0.05 * since, rel=0.1)


def test_what_is_in_force_before_its_match_goes_when_it_is_slower_and_stays_when_nothing_is_certain():
    for seconds in (0.3, 0.12):
        done = Training({"": 0.1, "fast": seconds}, trusted="fast").run(400)
        assert done.helper.state == "" and "not kept" in done.helper.notes[0] and done.contest.saved() == {}
        again = Training({"": 0.1, "fast": seconds}, trusted="fast", kept=done.contest.kept()).run(100)
        assert set(again.used[1:]) == {""} and again.contest.matches == []
    done = Training({"": 0.1, "fast": 0.1}, noise=0.05, trusted="fast").run(400)
    assert done.helper.state == "fast" and done.contest.saved() == {} and "no certain gain" in done.helper.notes[0]


def test_a_match_that_is_given_up_leaves_what_was_in_force():
    done = Training({"": 0.1, "fast": 0.05}, trusted="fast").run(28)
    assert "" in done.used
    done.contest.end()
    assert done.helper.state == "fast"


def test_what_is_hardly_faster_is_not_kept():
    assert Training({"": 0.1, "fast": 0.0995}, noise=0.05).run(400).helper.state == ""


def test_a_script_that_does_more_in_some_steps_hides_no_gain():
    for pictures in (9, 11, 13):
        assert Training({"": 0.1, "fast": 0.075}).run(110, pictures).helper.state == "fast"
        assert Training({"": 0.1, "fast": 0.1}).run(400, pictures).helper.state == ""


def test_nothing_is_tried_while_a_proof_takes_a_core():
    training = Training({"": 0.1, "fast": 0.05})
    training.helper.waits = True
    assert set(training.run(190).used) == {""}
    assert "fast" in training.run(40).used  # a proof that does not end holds up nothing for ever
    training = Training({"": 0.1, "fast": 0.05})
    training.helper.waits = True
    training.run(30)
    training.helper.waits = False
    assert "fast" in training.run(5).used


def test_the_best_of_several_states_is_kept():
    done = Training({"": 0.1, "a": 0.08, "b": 0.2, "c": 0.05}, states=("a", "b", "c")).run(400)
    assert done.helper.state == "c" and [m.won for m in done.contest.matches] == [True, False, True]
    began = [m.began_at for m in done.contest.won]
    expected = 0.02 * (400 - began[0]) + 0.03 * (400 - began[1])
    assert done.contest.saved()["pretended"] == pytest.approx(expected, rel=0.15)


def test_what_lost_is_tried_again_once_another_change_has_taken_over():
    training = Training({"": 0.1, "fast": 0.2})
    lost = training.run(60).contest.matches
    assert [match.won for match in lost] == [False]
    training.seconds["fast"], training.helper.took_over = 0.05, True  # the loader's workers are gone
    training.run(200)
    assert [match.won for match in training.contest.matches] == [False, True] and training.helper.state == "fast"
    training.run(200)
    assert len(training.contest.matches) == 2


def test_what_costs_short_steps_much_is_not_tried_where_they_are_tiny():
    training = Training({"": 0.002, "fast": 0.001})
    training.helper.costs_short_steps = True
    assert set(training.run(3000).used) == {""} and training.contest.idle
    assert training.helper.notes == ["pretended, fast: not tried, steps are too short"]


@pytest.mark.parametrize(("seconds", "first"), [(0.1, "costly"), (0.01, "cheap")])
def test_what_costs_short_steps_much_comes_last_for_them(seconds, first):
    training = Training({"": seconds, "costly": 2 * seconds, "cheap": seconds}, states=("costly",))
    costly, cheap = training.helper, Pretended(["cheap"], ())
    costly.costs_short_steps, cheap.name = True, "other"
    training.contest._helpers.append(cheap)
    for _ in range(round(3 / seconds)):
        training.now += max(training.seconds[costly.state], training.seconds[cheap.state])
        training.contest.step()
        if costly.state or cheap.state:
            break
    assert (costly.state or cheap.state) == first


def test_contests_go_on_with_the_next_start_of_a_short_script():
    kept, used = None, []
    for _ in range(20):
        training = Training({"": 0.1, "slow": 0.2, "fast": 0.05}, states=("slow", "fast"), kept=kept).run(9)
        kept = json.loads(json.dumps(training.contest.kept()))
        used.append(training.used)
    assert used[0] == [""] * 9 and set(used[-1][1:]) == {"fast"} and training.helper.left == []
    assert sum(each.count("slow") for each in used) < 20 and training.contest.idle
    training.contest.end()
    ended = Training({"": 0.1, "fast": 0.05, "new": 0.01}, states=("fast", "new"), kept=training.contest.kept()).run(60)
    assert set(ended.used[1:]) == {"fast"} and ended.contest.idle


def test_nothing_is_tried_in_a_training_that_is_over_at_once():
    assert set(Training({"": 0.001, "fast": 0.0001}).run(200).used) == {""}


def test_contests_lose_no_more_than_their_share():
    states = [f"s{n}" for n in range(40)]
    done = Training({"": 0.05, **dict.fromkeys(states, 0.2)}, states=states).run(2000)
    lost = sum(done.seconds[state] - 0.05 for state in done.used if state)
    assert 0 < lost <= 1.5 * module._SHARE * done.now


def test_an_error_of_ours_leaves_the_script_as_it_is():
    done = Training({"": 0.1, "fast": 0.05}, clashes=("fast",)).run(200)
    assert done.helper.broken and done.helper.state == "" and done.used[-50:] == [""] * 50
    assert "ValueError: no good" in done.helper.notes[0]
