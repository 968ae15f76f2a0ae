"""``gluontune bench recipes``: whether every recipe trains, or is refused before training with a reason.

Each trains a few steps of a small net and validates: ``trained``; ``refused``, an error before the first step that
names the contradicting fields (or the one that this machine lacks); or ``failed``, a fault of gluontune. A process
trains many recipes in a row; one that fails there is repeated in fresh processes, and this outcome counts.
"""

from __future__ import annotations

import collections
import gc
import json
import math
import os
import random
import re
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gluontune import runtime
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import Closing, write_json
from gluontune.core.interpreter import python
from gluontune.core.journal import Journal
from gluontune.core.processes import PipedProcess, die_with_parent, event_sender
from gluontune.parallel.shared import PATH_VARIABLE, create
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.bench.benchmark import Terms
from gluontune.search.bench.recipe_space import covering, draw, unavailable
from gluontune.training.child import serve
from gluontune.training.group import Group, RunFailed
from gluontune.training.loop import drive
from gluontune.training.starting import LocalRanks

_IDLE_S = 5.0  # a process that needs longer to end a recipe is not reused
_SHARING = ("local", "shared-memory", "async")
_RECIPES = 60  # recipes of a process at most, so that leaks do not add up
Idle = dict[tuple[Any, ...], list[tuple[PipedProcess, int]]]  # by kind, each with the number of its recipes so far


def kind_of(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The properties that a process cannot change; recipes with equal ones can share processes."""
    engine = values.get("engine", "local")
    return (
        "shared" if engine in _SHARING else engine, values.get("runtime", "as-installed"),
        tuple(sorted(values.get("env", {}).items())), values.get("dtype") == "bfloat16",
        1 if engine == "local" else values.get("num_devices", 1),
    )  # fmt: skip


class Pool(Closing):
    """Idle processes by kind; at most two kinds are kept, to save memory."""

    def __init__(self) -> None:
        self._idle: Idle = {}

    def site(self, recipe: Recipe, world: int, setup: Callable[[int, int], dict[str, Any]]) -> _Site:
        """The processes for a recipe: the ``site`` of :class:`gluontune.train.Group`."""
        kind = kind_of(recipe.to_dict())
        for other in [k for k in self._idle if k != kind][:-1]:
            for process, _ in self._idle.pop(other):
                process.close()
        return _Site(self._idle, kind, self._idle.pop(kind, []), recipe, world, setup)

    def close(self) -> None:
        for processes in self._idle.values():
            for process, _ in processes:
                process.close()
        self._idle = {}


class _Site(LocalRanks):
    def __init__(
        self, idle: Idle, kind: tuple[Any, ...], waiting: list[tuple[PipedProcess, int]], recipe: Recipe, world: int,
        setup: Callable[[int, int], dict[str, Any]],
    ):  # fmt: skip
        self.ranks = []
        self._idle, self._kind, self._memory = idle, kind, -1
        env = runtime.child_env(recipe.runtime, recipe.env, processes=world)
        self.applied = runtime.applied(env)
        variables = {}
        if recipe.engine in ("async", "shared-memory"):
            self._memory, variables[PATH_VARIABLE] = create()
        self._used = [count + 1 for _, count in waiting] or [1] * world
        for rank in range(world):
            cpus = runtime.cpus_for_rank(rank, world) if world > 1 else None
            given = {**setup(rank, rank), "parent": os.getpid(), "cpus": cpus, "variables": variables}
            if waiting:
                process = waiting[rank][0]
                process.say(given)
            else:
                process = PipedProcess(python("-m", "gluontune.search.bench.recipes"), given, env)
            self.ranks.append(process)

    def close(self) -> None:
        """Return the processes to the pool if they become idle; else end them. Safe to call twice."""
        ranks, self.ranks = self.ranks, []
        for rank in ranks:
            rank.say({"do": "quit"})
        at_rest = [self._comes_to_rest(rank) for rank in ranks]
        if ranks and all(at_rest) and max(self._used) < _RECIPES:
            self._idle[self._kind] = list(zip(ranks, self._used))
        else:
            for rank in ranks:
                rank.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    @staticmethod
    def _comes_to_rest(rank: PipedProcess) -> bool:
        until = time.monotonic() + _IDLE_S
        with selectors.DefaultSelector() as selector:
            selector.register(rank.reading, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0:
                event = rank.poll()
                if event is None:
                    selector.select(left)
                elif event["event"] in ("idle", "end"):
                    return event["event"] == "idle"
        return False


OUTCOMES = ("trained", "refused", "failed")
_EXPECTED = {"GluontuneError", "UnknownNameError", "UsageError", "EngineMissing"}
_PLAIN = {"markup": False, "highlight": False, "soft_wrap": True}
_UNDER_WAY = ("training", "validating", "exchanging parameters")


def run(
    count: int | None = None, *, seed: int = 0, lanes: int | None = None, time_limit: float = 60.0, **terms: Any
) -> dict[str, Any]:
    """Train ``count`` random recipes and return the document; ``terms`` are ``out``, ``resume`` and ``say``.

    None takes the set that covers all pairs of values, and all recipes to be refused.
    """
    if (count is not None and count < 1) or (lanes is not None and lanes < 1):
        raise UsageError(f"bench recipes: --count {count}, --lanes {lanes}: give at least 1")
    how = Terms(**terms)
    conditions = {"count": count, "seed": seed, "time_limit": time_limit}
    rng = random.Random(seed)
    if count is None:
        wanted = [values for part in covering(seed) for values in part]
    else:
        wanted = [draw(rng) for _ in range(count)]
    begin = time.monotonic()
    with how.journal("bench recipes", conditions) as journal:
        _train_all(wanted, journal, lanes or runtime.usable_cores(), time_limit, how.tell)
        rows = sorted(journal.pieces.values(), key=lambda row: row["place"])
    found = _document(rows, conditions, time.monotonic() - begin)
    if how.out is not None:
        write_json(how.out, found)
    return found


def _train_all(
    wanted: Sequence[Mapping[str, Any]], journal: Journal, lanes: int, limit: float, say: Callable[[str], None]
) -> None:
    """Train the recipes that the journal lacks. Lanes take them from both ends of one queue, sorted by kind."""
    left = [(place, values) for place, values in enumerate(wanted) if str(place) not in journal.pieces]
    line = collections.deque(sorted(left, key=lambda each: repr(kind_of(each[1]))))
    lock = threading.Lock()
    over = threading.Event()
    failed = [row["place"] for row in journal.pieces.values() if row["outcome"] == "failed"]

    def lane(number: int) -> None:
        with Pool() as pool:
            while line and not over.is_set():
                with lock:
                    if not line:
                        return
                    place, values = line.popleft() if number % 2 == 0 else line.pop()
                row = {"place": place, "values": dict(values), **train_one(values, pool, limit)}
                with lock:
                    if over.is_set():
                        return
                    journal.keep(str(place), row)
                    if row["outcome"] == "failed":
                        failed.append(place)
                    say(f"{len(journal.pieces)} of {len(wanted)} recipes, {len(failed)} failed")

    with ThreadPoolExecutor(lanes) as executor:
        try:
            for done in [executor.submit(lane, number) for number in range(lanes)]:
                done.result()
        finally:
            over.set()


def train_one(values: Mapping[str, Any], pool: Pool | None = None, time_limit: float = 60.0) -> dict[str, Any]:
    """The outcome of one recipe: ``{"outcome", "reason", "fields", "seconds", "fresh"}``, in the processes of ``pool``.

    >>> found = train_one({"dtype": "float16", "devices": "cpu"})
    >>> found["outcome"], found["fields"]
    ('refused', ['devices', 'dtype'])
    """
    begin = time.monotonic()
    try:
        recipe = Recipe.from_dict(values)
    except UsageError as error:
        found = _refusal(str(error), values)
    else:
        found = _trained(recipe, values, pool, time_limit)
        if "log" in found and not found["fresh"]:  # it failed in training
            found = _trained(recipe, values, None, time_limit)
    return {**found, "seconds": round(time.monotonic() - begin, 2)}


def _trained(recipe: Recipe, values: Mapping[str, Any], pool: Pool | None, limit: float) -> dict[str, Any]:
    site = pool.site if pool is not None and recipe.engine in _SHARING else None
    fresh = {"fresh": site is None}
    result = RunResult(recipe=recipe.to_dict(), machine={})
    try:
        with Group(recipe, time_limit=limit, site=site) as group:
            drive(group, result)
    except RunFailed as failure:
        if failure.kind in _EXPECTED and failure.phase not in _UNDER_WAY:
            return {**_refusal(failure.message, values), **fresh}
        reason, log = f"{failure.kind}: {failure}", failure.log[-2000:]
    except GluontuneError as error:
        return {**_refusal(str(error), values), **fresh}
    else:
        numbers = [*result.train_loss, *result.val_loss, *result.val_accuracy]
        if result.val_accuracy and result.steps > 0 and all(map(math.isfinite, numbers)):
            return {"outcome": "trained", "reason": "", "fields": [], **fresh}
        reason, log = f"trained {result.steps} steps, but losses and accuracies are {numbers}", ""
    return {"outcome": "failed", "reason": reason, "fields": [], "log": log, **fresh}


def _refusal(message: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A refusal if the message names two fields, or one whose value this machine lacks; else a failure."""
    fields = named_fields(message)
    lacks = {name for name, missing in unavailable().items() if values.get(name) in missing}
    clear = len(fields) >= 2 or bool(lacks & set(fields))
    reason = message if clear else f"refused, but not by naming the fields at odds: {message}"
    return {"outcome": "refused" if clear else "failed", "reason": reason, "fields": fields, "fresh": False}


def named_fields(message: str) -> list[str]:
    """The recipe fields that a message names, as ``field=value``.

    >>> named_fields("recipe fields dtype='float16' and devices='cpu' contradict each other")
    ['devices', 'dtype']
    """
    known = set(Recipe().to_dict())
    return sorted(known & set(re.findall(r"\b([a-z_]+)=", message)))


def _document(rows: list[dict[str, Any]], conditions: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    counts = collections.Counter(row["outcome"] for row in rows)
    figures: dict[str, Any] = {"recipes": len(rows), **{name: counts[name] for name in OUTCOMES}}
    return {
        "rows": rows, "figures": {**figures, "seconds": round(seconds, 1)}, "machine": runtime.machine_facts(),
        "conditions": {**conditions, "unavailable": json.loads(json.dumps(unavailable()))},
    }  # fmt: skip


def show(found: Mapping[str, Any], console: Any) -> None:
    for row in found["rows"]:
        if row["outcome"] == "failed":
            usual = Recipe().to_dict()
            odd = {name: value for name, value in row["values"].items() if usual.get(name) != value}
            console.print(f"failed: {row['reason']}\n  recipe {row['place']}: {odd}", **_PLAIN)
    refused = collections.Counter(" and ".join(row["fields"]) for row in found["rows"] if row["outcome"] == "refused")
    for fields, number in refused.most_common():
        console.print(f"refused for {fields}: {number}", **_PLAIN)
    figures = found["figures"]
    console.print(
        f"{figures['recipes']} recipes: {figures['trained']} trained, {figures['refused']} refused with the fields "
        f"named, {figures['failed']} failed; {figures['seconds']:.0f} s",
        **_PLAIN,
    )


def main() -> None:
    """A process of the pool: :mod:`gluontune.training.child`, with a new set-up after each ``quit``."""
    send = event_sender()
    bound = False
    while line := sys.stdin.readline():
        setup = json.loads(line)
        if "recipe" not in setup:  # a quit, after a recipe that has failed
            continue
        if not bound:
            die_with_parent(setup["parent"])
            if setup.get("cpus"):
                runtime.bind_to_cpus(setup["cpus"])
            bound = True
        os.environ.update(setup["variables"])
        serve(setup, send)
        gc.collect()
        send(event="idle")
    os.killpg(0, signal.SIGKILL) if os.getpgrp() == os.getpid() else os._exit(0)


if __name__ == "__main__":
    main()
