"""The time at which a run reached its target, statistics over repeats, and what they cost in dollars and joules.

No price is built in, because prices change.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune.core import stats
from gluontune.core.errors import GluontuneError, UsageError, nearest
from gluontune.core.reading import MOST_YAML, parse_yaml, read_text
from gluontune.recipe.registry import Parameter
from gluontune.recipe.result import RunResult

POINTS = 0.02  # of final accuracy, as in the ladder's gate
EPOCHS = 0.1  # of the epochs to target: a smaller difference is not marked


def first_crossing(accuracies: Sequence[float], target: float) -> int | None:
    """Place of the first validation whose accuracy is at least ``target``; None if there is none.

    Source: DAWNBench reads its time off the first entry that reaches the threshold.

    >>> first_crossing([0.5, 0.9, 0.8, 0.91], 0.9), first_crossing([0.5], 0.9)
    (1, None)
    """
    return next((place for place, value in enumerate(accuracies) if value >= target), None)


def sustained_crossing(accuracies: Sequence[float], target: float) -> int | None:
    """Place of the validation from which on all, to the run's end, are at least ``target``: a first one may be luck.

    >>> sustained_crossing([0.5, 0.9, 0.8, 0.91, 0.92], 0.9), sustained_crossing([0.95, 0.8], 0.9)
    (3, None)
    """
    if not accuracies or accuracies[-1] < target:
        return None
    below = [place for place, value in enumerate(accuracies) if value < target]
    return below[-1] + 1 if below else 0


def summarize(reached: Sequence[float], spent_in_vain: Sequence[float] = ()) -> dict[str, Any]:
    """Statistics of repeats on the time to a target.

    Mean, median and coefficient of variation are of the seconds of repeats that ``reached`` it, as in DAWNBench's
    analysis. Two figures count failures, too: ``median_of_all``, where a failure is longer than any time, and
    ``expected_seconds``, until a success if failed runs are started again. Figures are None if no repeat reached the
    target, an interval if fewer than three did.

    Source: Coleman et al., *Analysis of DAWNBench*, 2019 (coefficient of variation, share of runs);
    Hansen et al., *Real-parameter black-box optimization benchmarking*, 2010 (expected running time).

    >>> found = summarize([10.0, 11.0, 12.0], [30.0])
    >>> found["mean"], found["median"], found["failed"], found["expected_seconds"], round(found["cv_pct"], 1)
    (11.0, 11.0, 1, 21.0, 9.1)
    >>> summarize([], [30.0])["median"] is None
    True
    """
    times, count = list(reached), len(reached) + len(spent_in_vain)
    unknown = ("mean", "mean_ci95", "median", "ci95", "cv_pct", "median_of_all", "expected_seconds")
    found: dict[str, Any] = {"repeats": count, "reached": len(times), "failed": len(spent_in_vain)}
    found.update(dict.fromkeys(unknown))
    if not times:
        return found
    middle = stats.interval(times)
    found["median"], found["mean"] = middle["median"], statistics.fmean(times)
    found["expected_seconds"] = (math.fsum(times) + math.fsum(spent_in_vain)) / len(times)
    places, ordered = ((count - 1) // 2, count // 2), sorted(times)
    if places[1] < len(ordered):
        found["median_of_all"] = (ordered[places[0]] + ordered[places[1]]) / 2
    if len(times) > 1:
        found["cv_pct"] = 100 * statistics.stdev(times) / found["mean"]
    if len(times) >= stats.LEAST:
        from scipy import stats as tables

        # Student's interval of the mean on the logarithmic scale (delta method): never below zero.
        reach = float(tables.t.ppf(0.975, len(times) - 1)) * found["cv_pct"] / 100 / math.sqrt(len(times))
        found["mean_ci95"] = [found["mean"] * math.exp(-reach), found["mean"] * math.exp(reach)]
        found["ci95"] = middle["ci95"]
    return found


def accuracies(result: RunResult) -> list[float]:
    """A run's validation accuracies by epoch; GluontuneError if its job measures something else."""
    if (name := result.val_metric.get("name", "accuracy")) != "accuracy":
        raise GluontuneError(
            f"{result.recipe.get('job')}: this job measures {name}, so it has no time to an accuracy; train with "
            f"target_accuracy=VALUE ends at that value of {name}"
        )
    return list(result.val_accuracy)


def parity(
    mine: Sequence[float | None], reference: Sequence[float | None], *, accuracy: Sequence[float] = (),
    reference_accuracy: Sequence[float] = (),
) -> dict[str, Any]:  # fmt: skip
    """Whether a recipe converges as its reference does, or suspiciously better or worse.

    As MLPerf's reference convergence points: a run that needs clearly fewer epochs than the reference, at the same
    target, differs in more than speed. ``mine`` and ``reference``: epochs to the target of each repeat, or None.

    Returns:
        ``verdict``, ``suspicious`` (faster, or more accurate: look for a change beyond speed), ``epochs_ratio``, ``p``
        of Welch's two-sided t-test on the epochs (None where all repeats are alike), ``reason``.

    Source: MLCommons, ``rcp_checker`` (t-test on the epochs to converge, 5 %).

    >>> parity([8, 9, 8, 9], [8, 9, 9, 8])["verdict"], parity([4, 4, 5, 4], [8, 9, 9, 8])["verdict"]
    ('as the reference', 'converges faster')
    """
    mine, reference = ([None if e is None or not math.isfinite(e) else e for e in side] for side in (mine, reference))
    reached, theirs = [e for e in mine if e is not None], [e for e in reference if e is not None]
    found: dict[str, Any] = {"verdict": "too few repeats", "suspicious": False, "epochs_ratio": None, "p": None}
    tried = len(reference) >= 2 and len(mine) >= 2
    if tried and len(reached) / len(mine) < len(theirs) / len(reference) - 0.25:
        of = f"{len(theirs)} of {len(reference)}"
        text = f"{len(reached)} of {len(mine)} repeats reached the target; the reference {of}"
        return {**found, "verdict": "fails more often", "reason": text}
    if len(reached) < 2 or len(theirs) < 2:
        found["reason"] = "parity needs two repeats of each that reached the target"
        return found
    mean, p = statistics.fmean, _welch(reached, theirs)
    ratio = mean(reached) / mean(theirs)
    found.update(epochs_ratio=ratio, p=p, verdict="as the reference")
    found["reason"] = f"{mean(reached):.1f} epochs to the target, the reference {mean(theirs):.1f}"
    if abs(ratio - 1) > EPOCHS and (p is None or p < 0.05):
        found["verdict"] = "converges faster" if ratio < 1 else "converges slower"
        found["suspicious"] = ratio < 1
    elif accuracy and reference_accuracy and not abs(gap := mean(accuracy) - mean(reference_accuracy)) <= POINTS:
        found["verdict"] = "more accurate" if gap > 0 else "less accurate"
        found["suspicious"] = gap > 0
        found["reason"] += f"; final accuracy {100 * gap:+.1f} points"
    return found


def _welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """p of Welch's t-test; None where neither varies, as epochs often do not."""
    if len(set(a)) == 1 and len(set(b)) == 1:
        return None
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns of samples that do not vary
        return float(stats.ttest_ind(a, b, equal_var=False).pvalue)


FIELDS = ("machine", "usd_per_hour", "date", "source")
EXAMPLE = "prices: [{machine: my-server, usd_per_hour: 0.34, date: 2026-01-31, source: 'https://…'}]"


def read_price(path: str | Path, machine: str | None = None) -> dict[str, Any]:
    """One machine's price, ``{"machine", "usd_per_hour", "date", "source"}``, from a table in YAML.

    Each price needs its date (``yyyy-mm-dd``) and its source, so that a reader can judge it. ``machine``, of the entry,
    may be omitted for a table of one. GluontuneError: the file cannot be read. UsageError names the entry that is
    wrong.

    >>> import pathlib, tempfile
    >>> table = pathlib.Path(tempfile.mkdtemp()) / "prices.yaml"
    >>> _ = table.write_text("prices: [{machine: m, usd_per_hour: 0.5, date: 2026-01-31, source: list price}]")
    >>> read_price(table)["usd_per_hour"]
    0.5
    """
    try:
        document = parse_yaml(read_text(path, MOST_YAML))
    except (OSError, UnicodeDecodeError) as error:
        raise GluontuneError(f"{path}: cannot read the price table: {error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not valid YAML: {error}") from error
    entries = document.get("prices") if isinstance(document, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path}: a price table has a list of prices, such as\n{EXAMPLE}")
    checked = [_checked(entry, f"{path}: price {number}") for number, entry in enumerate(entries, 1)]
    names = [entry["machine"] for entry in checked]
    if machine is None and len(checked) > 1:
        raise UsageError(f"{path}: it has {len(checked)} machines: choose one with --machine ({', '.join(names)})")
    if machine is None or machine in names:
        return checked[0 if machine is None else names.index(machine)]
    close = nearest(machine, names)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(f"{path}: no machine {machine!r} in it: {hint}Known: {', '.join(names)}")


def _checked(entry: Any, where: str) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where}: not a mapping of {', '.join(FIELDS)}; write it as\n{EXAMPLE}")
    if missing := [name for name in FIELDS if entry.get(name) in (None, "")]:
        named = f" ({entry['machine']})" if entry.get("machine") else ""
        what = f"fields {', '.join(missing)} are" if len(missing) > 1 else f"field {missing[0]} is"
        raise UsageError(f"{where}{named}: the {what} missing; write it as\n{EXAMPLE}")
    price = entry["usd_per_hour"]
    if fault := Parameter(above=0).fault(price):
        raise UsageError(f"{where}: usd_per_hour={price!r}: give {fault}")
    date = str(entry["date"])
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        raise UsageError(f"{where}: date={date!r}: write the day of the price as yyyy-mm-dd") from None
    machine, source = str(entry["machine"]), str(entry["source"])
    return {"machine": machine, "usd_per_hour": float(price), "date": date, "source": source}


def usd(price: Mapping[str, Any] | None, seconds: float | None) -> float | None:
    """The cost of a machine for so many seconds; None if the price or the time is unknown.

    >>> usd({"usd_per_hour": 0.36}, 100.0)
    0.01
    """
    return None if price is None or seconds is None else price["usd_per_hour"] * seconds / 3600


def gpu_joules(utilization: Mapping[str, Any], until_s: float) -> float | None:
    """Joules of all sampled GPUs from the start of a RunResult's series to ``until_s``; None without readings.

    >>> gpu_joules({"t_s": [0.0, 1.0, 2.0], "gpu_power_w": {"0": [100.0, 100.0, 200.0]}}, 2.0)
    250.0
    """
    power = utilization.get("gpu_power_w")
    if not isinstance(power, Mapping) or not power:
        return None
    total, read = 0.0, False
    for watts in power.values():
        points = [(t, w) for t, w in zip(utilization["t_s"], watts) if w is not None and t <= until_s]
        read = read or len(points) > 1
        total += sum((t1 - t0) * (w0 + w1) / 2 for (t0, w0), (t1, w1) in zip(points, points[1:]))
    return total if read else None


class PackageEnergy:
    """Energy of the machine's CPU packages, by Linux's powercap counters (RAPL).

    :meth:`joules` is None where only root can read them, and on virtual machines, which have none.

    >>> PackageEnergy("/nonexistent").joules() is None
    True
    """

    def __init__(self, root: str | Path = "/sys/class/powercap"):
        packages = sorted(Path(root).glob("intel-rapl:[0-9]*"))
        self._zones = [zone for zone in packages if zone.name.count(":") == 1]
        self._last = self._read()
        self._total = 0.0

    def _read(self) -> list[tuple[int, int]] | None:
        found = []
        with contextlib.suppress(OSError, ValueError):
            for zone in self._zones:
                values = [int((zone / name).read_text()) for name in ("energy_uj", "max_energy_range_uj")]
                found.append((values[0], values[1]))
        return found if found and len(found) == len(self._zones) else None

    def joules(self) -> float | None:
        """Joules since the object was created; call it at least once a minute, because the counters wrap."""
        now = self._read()
        if now is None or self._last is None:
            return None
        for (before, _), (after, span) in zip(self._last, now):
            self._total += ((after - before) if after >= before else (after - before + span)) / 1e6
        self._last = now
        return self._total
