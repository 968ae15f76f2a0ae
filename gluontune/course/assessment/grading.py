"""Points and feedback for one run: pure functions, so that each verdict can be tested alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# points of one part, out of 50; "agreement" exists on several ranks only, and takes from the three before it
WEIGHTS = {
    "accuracy": 15, "time": 15, "steadiness": 5, "end": 3, "left behind": 2, "data": 4, "validation": 3, "samples": 3,
}  # fmt: skip
RANKS_WEIGHTS = {**WEIGHTS, "data": 3, "validation": 2, "samples": 2, "agreement": 3}
OPTIONAL = ("steadiness",)  # gives points, but is not required to pass
CERTAIN = 0.001  # probability by luck below which parameters know a part
# A false accusation in one season of 10,000: a season grades 1,000 runs, and each of them may have chosen
# among 10 nets by their validation accuracy.
SUSPECT = 1e-4 / (1_000 * 10)
AGREE = 1e-3
_START_S = 1.0  # of CPU time, by which the starts of processes differ
IDLE = 0.4  # of the busiest rank's work, below which a rank counts as idle
_STEADY_SHARE = 0.8


@dataclass(frozen=True)
class Goal:
    """The requirements of a part, from the reference's run on the same data."""

    budget_s: float  # from the start of the first process to the end of the last one
    accuracy: float  # on hidden test images, 0 … 1
    steadiness: float  # score of the reference's run
    limit_s: float  # after which a script is ended
    memory_mib: int  # of all its processes


@dataclass
class Criterion:
    """One line of the verdict."""

    name: str
    points: float
    max_points: int
    passed: bool
    feedback: str


@dataclass
class Part:
    """The verdict on one run, on one rank or on two; passed if every criterion but steadiness holds."""

    ranks: int
    goal: Goal
    seconds: float | None
    accuracy: float | None  # None: no net to examine
    steadiness: float | None
    criteria: list[Criterion] = field(default_factory=list)
    series: Mapping[str, Any] = field(default_factory=dict)  # the monitor's
    peak_rss_mib: float | None = None
    traces: Mapping[str, Any] = field(default_factory=dict)  # accuracy on each part's own styles, and chance by luck

    @property
    def points(self) -> float:
        return round(sum(c.points for c in self.criteria), 1)

    @property
    def max_points(self) -> int:
        return sum(c.max_points for c in self.criteria)

    @property
    def passed(self) -> bool:
        return all(c.passed for c in self.criteria if c.name not in OPTIONAL)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "points": self.points, "max_points": self.max_points, "passed": self.passed}


def grade(ranks: int, goal: Goal, run: Mapping[str, Any], found: Mapping[str, Any], facts: Mapping[str, Any]) -> Part:
    """The verdict, from the supervisor's report, the examination, and the facts of ``task.json``.

    ``found`` is ``{"missing": [rank, …]}``, ``{"error": …}``, or ``accuracy``, ``traces`` (accuracy and luck by part),
    ``samples`` (of each rank, None if it reported none), ``forward_cpu_s``, ``difference``.
    """
    if found.get("missing") and run["stopped_by"]:
        found = {"error": "ended by force before it had handed in its net"}
    accuracy = found.get("accuracy")
    score = run["steadiness"].get("score")
    part = Part(ranks, goal, run["seconds"], accuracy, score, series=run["series"], peak_rss_mib=run["peak_rss_mib"])
    part.traces = dict(found.get("traces", {}))
    chance = 1 / facts["classes"]
    learned = 0.0 if accuracy is None else _share(accuracy - chance, goal.accuracy - chance)
    verdicts = {"time": _time(goal, run, learned), "steadiness": _steadiness(goal, run, learned)}
    verdicts.update({"end": _end(goal, run), "left behind": _left(run)})
    nothing = found.get("error")
    if found.get("missing"):
        names = ", ".join(f"rank {rank}" for rank in found["missing"])
        nothing = (
            f"{names} handed in no net: each rank calls task.save(net, samples) at its end; "
            "what a script prints or writes elsewhere does not count"
        )
    if nothing is None:
        verdicts["accuracy"] = _accuracy(goal, found["accuracy"], chance, learned)
        verdicts["data"] = _data(found, facts)
        verdicts["validation"] = _validation(found)
        verdicts["samples"] = _samples(found, run, facts)
        verdicts["agreement"] = _agreement(found["difference"])
    else:
        verdicts["accuracy"] = 0.0, nothing
    for name, most in (RANKS_WEIGHTS if ranks > 1 else WEIGHTS).items():
        share, feedback = verdicts.get(name, (0.0, "nothing to examine"))
        part.criteria.append(Criterion(name, round(share * most, 1), most, share >= 1, feedback))
    return part


def _share(reached: float, wanted: float) -> float:
    """The share of the goal that was reached, from 0 to 1.

    >>> _share(0.3, 0.6), _share(0.7, 0.6), _share(-0.1, 0.0), _share(0.0, -0.02)
    (0.5, 1.0, 0.0, 1.0)
    """
    if reached >= wanted:
        return 1.0
    return min(1.0, max(0.0, reached / wanted)) if wanted > 0 else 0.0


Verdict = tuple[float, str]  # share of the points, feedback


def _accuracy(goal: Goal, accuracy: float, chance: float, learned: float) -> Verdict:
    text = f"{100 * accuracy:.1f} % on hidden test images; wanted are {100 * goal.accuracy:.1f} %"
    if accuracy >= goal.accuracy:
        return 1.0, text
    if accuracy <= 1.5 * chance:
        return 0.0, (
            f"{text}. That is mere chance: these parameters know nothing of these data. Were they trained, on these "
            "images, and do the images reach the net as task.normalize() makes them?"
        )
    return min(0.99, learned), f"{text}. Train longer, or better: rate, schedule, momentum"


def _time(goal: Goal, run: Mapping[str, Any], learned: float) -> Verdict:
    seconds = run["seconds"]
    text = f"{seconds:.1f} s by the grader's clock; the budget is {goal.budget_s:.1f} s"
    if run["stopped_by"] == "time":
        return 0.0, f"ended by force after {goal.limit_s:.1f} s; the budget is {goal.budget_s:.1f} s"
    if seconds > goal.budget_s:
        late = 1 - (seconds - goal.budget_s) / max(goal.limit_s - goal.budget_s, 1e-9)
        share = min(0.99, max(0.0, 0.5 * late) * learned)
        return share, f"{text}. What does a step wait for? gluontune monitor shows it"
    if learned < 1:
        return 0.99 * learned, f"{text}; the share of the accuracy that was reached multiplies these points"
    return 1.0, text


def _steadiness(goal: Goal, run: Mapping[str, Any], learned: float) -> Verdict:
    score, device = run["steadiness"].get("score"), run["steadiness"].get("device", "cpu")
    if score is None:
        return 0.0, "too short to be sampled"
    wanted = _STEADY_SHARE * goal.steadiness
    text = f"the {device} is used with a steadiness of {score:.2f} (1 is even); wanted is {wanted:.2f}"
    if learned < 1:
        share = 0.99 * learned * min(1.0, score / max(wanted, 1e-9))
        return share, f"{text}; the share of the accuracy that was reached multiplies these points"
    if score >= wanted:
        return 1.0, text
    return max(0.0, score / wanted), f"{text}. It works in bursts: something else is waited for in between"


def _end(goal: Goal, run: Mapping[str, Any]) -> Verdict:
    if run["stopped_by"] == "time":
        return 0.0, f"not done after {goal.limit_s:.1f} s: ended by force"
    if run["stopped_by"] == "memory":
        most = f"{goal.memory_mib:,} MiB of memory, files in memory counted, or the machine's last"
        return 0.0, f"took more than {most}: ended by force"
    for rank, end in enumerate(run["ranks"]):
        if end["code"] != 0 and not (run["stopped_by"] == "partner" and end.get("forced")):
            who = f"rank {rank}" if len(run["ranks"]) > 1 else "the script"
            how = f"was ended by signal {-end['code']}" if end["code"] < 0 else f"failed with code {end['code']}"
            lines = [line.strip() for line in end["tail"].splitlines() if line.strip()]
            said = lines[-1][-300:] if lines else "it printed nothing"
            return 0.0, f"{who} {how} after {end['seconds']:.1f} s: {said}"
    return 1.0, "ended by itself, without an error"


def _left(run: Mapping[str, Any]) -> Verdict:
    if run["left"]:
        return 0.0, (
            f"{len(run['left'])} process(es) went on after the script had ended, and were ended: {run['left'][0]}; "
            "the clock stops for all of them"
        )
    return 1.0, "nothing was left running"


def _data(found: Mapping[str, Any], facts: Mapping[str, Any]) -> Verdict:
    """Whether the net has learned from both halves of the training images."""
    unseen = [part for part in ("train-a", "train-b") if found["traces"][part][1] >= CERTAIN]
    if not unseen:
        return 1.0, "the parameters know what only these training images show"
    if len(unseen) == 2:
        return 0.0, "the parameters show no trace of the training images: they were not trained on these data"
    if len(facts["train_images"]) > 1:
        idle = 0 if unseen == ["train-a"] else 1
        return 0.5, (
            f"the parameters show no trace of what only rank {idle} was given: the ranks did not exchange gradients, "
            f"or rank {idle} did not train"
        )
    return 0.5, "the parameters show no trace of a half of the training images: both are to be used"


def _validation(found: Mapping[str, Any]) -> Verdict:
    _, by_luck = found["traces"]["val"]
    if by_luck < SUSPECT:
        return 0.0, (
            "the parameters know classes that dice gave to single validation images (by luck: "
            f"{by_luck:.0e}): they were trained on validation images. Train on task.train alone"
        )
    return 1.0, "no trace of training on validation images"


def _samples(found: Mapping[str, Any], run: Mapping[str, Any], facts: Mapping[str, Any]) -> Verdict:
    """Whether each rank worked for an epoch, and as much as the others, by CPU time, which the kernel counts.

    The reported number of images gives no points, but an impossible one is refused.
    """
    samples, cost = found["samples"], found["forward_cpu_s"]
    work = [max(end["cpu_s"] - found["start_cpu_s"], 0.0) for end in run["ranks"]]
    for rank, (claimed, given, end) in enumerate(zip(samples, facts["train_images"], run["ranks"])):
        who = f"rank {rank}" if len(samples) > 1 else "the script"
        if claimed is None:
            return 0.0, f"{who} did not report how many images it has trained on: task.save(net, samples)"
        if claimed < 0.95 * given:
            return 0.0, f"{who} reports {claimed:,} images trained on, of {given:,}: at least one epoch is wanted"
        if run["steadiness"].get("device") == "gpu":
            continue  # its work is not the CPU's
        if max(claimed, given) * cost > end["cpu_s"]:
            return 0.0, (
                f"{who} reports {claimed:,} images trained on, but its {end['cpu_s']:.1f} s of CPU time suffice this "
                f"net for {end['cpu_s'] / cost:,.0f} at most, even without gradients"
            )
        if work[rank] < min(IDLE * max(work), max(work) - _START_S):
            return 0.0, (
                f"{who} worked for {work[rank]:.1f} s of CPU time, and another for {max(work):.1f} s: each rank trains "
                "on its own half"
            )
    if min(samples) < 0.9 * max(samples):
        return 0.0, f"the ranks report unequal numbers of images: {', '.join(f'{n:,}' for n in samples)}"
    shown = f"the CPU time is that of an epoch or more{' of each rank' if len(work) > 1 else ''}"
    return 1.0, f"{shown}; {sum(samples):,} images is the script's own word, and counts for nothing"


def _agreement(difference: float) -> Verdict:
    if not math.isfinite(difference):
        return (0.0, "the ranks handed in different nets: other names, shapes or types of arrays, or what is no number")
    if difference > AGREE:
        return 0.0, (
            f"the ranks' parameters differ (by {100 * difference:.2g} % of an array's largest value or of answers): "
            "they began differently, or did not exchange gradients at each step. Give the trainer "
            "kvstore=mx.kv.create('dist_sync')"
        )
    return 1.0, "all ranks hold the same parameters"
