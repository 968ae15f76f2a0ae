"""Optimizers in real trainings: large batches, epochs to an accuracy, small nets, cost, ESGD."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _esgd_contest, _optimizer_steps
from benchmarks._optimizer_findings import describe, summarize, table
from benchmarks._optimizer_runs import PLANS, fast_recipe
from gluontune import datasets
from gluontune.core.errors import UsageError, nearest
from gluontune.core.events import Progress
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.esgd import EsgdPlan
from gluontune.search.study import Study

__all__ = ["PARTS", "SCHEMA", "run", "show"]

SCHEMA = 1
PARTS = {
    **{name: plan.title for name, plan in PLANS.items()},
    "step-time": "What LARS and LBSGD cost, beside SGD",
    "esgd": "ESGD against a single training and a population, at equal compute",
}


def run(
    part: str,
    *,
    dataset: str = "sample",
    seeds: Sequence[int] | None = None,
    epochs: Sequence[int] | None = None,
    only: Sequence[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    rounds: int = 9,
    seconds: float = 1.0,
    net: str = "62",
    plan: EsgdPlan | None = None,
    workers: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
    time_limit: float = 600.0,
) -> dict[str, Any]:
    """Do one part and return its document.

    Args:
        part: a name of :data:`PARTS`.
        dataset: what is trained on (not for ``step-time``).
        seeds: of the trainings; None: the part's own number of them, from 0 on.
        epochs: lengths of the trainings; None: the part's own.
        only: groups or contenders whose name contains one of these.
        changes: fields of the base recipe, for a quick look or another net.
        rounds, seconds, net: of ``step-time``; a net's name, or the number of weight layers of a CIFAR ResNet.
        plan, workers: of ``esgd``.
        out: folder for ``optimizers.json``, saved after each training, and the RunResults.
        resume: keep what ``out`` holds and do the rest.
        say: called with lines of progress. time_limit: seconds of silence that count as hung.

    Returns:
        ``{"title", "sentence", "holds", "given", "done": rows, "groups", "machine", "complete", …}``; a training that
        failed is a row with its reason.

    Raises:
        UsageError: an unknown part, seeds that repeat. GluontuneError: no such data set.
    """
    if part not in PARTS:
        close = nearest(part, PARTS)
        hint = f"did you mean {' or '.join(repr(c) for c in close)}? " if close else ""
        raise UsageError(f"--part {part!r}: {hint}Choose from {', '.join(PARTS)}")
    count = PLANS[part].seeds if part in PLANS else 3
    chosen = list(range(count)) if seeds is None else list(seeds)
    if not chosen or len(set(chosen)) != len(chosen) or min(chosen) < 0:
        raise UsageError(f"--seeds {','.join(map(str, chosen))}: give different seeds of at least 0")
    if part == "step-time":
        given: dict[str, Any] = {"part": part, "net": net, "rounds": rounds, "seconds": seconds}
    else:
        datasets.open(dataset)  # before anything takes long
        base = _base(part, dataset, changes)
        given = {"part": part, "dataset": dataset, "recipe": base.to_dict()}
    if part in PLANS:
        given["epochs"] = list(epochs or PLANS[part].epochs)
        if len(given["epochs"]) > 1 and part != "epochs":
            raise UsageError(f"--epochs {','.join(map(str, given['epochs']))}: part {part!r} takes one length")
    if part == "esgd":
        plan = plan or EsgdPlan()
        given["plan"] = dataclasses.asdict(plan)
    ledger = Study("optimizers", SCHEMA, given, out, resume)
    ledger.document.update(title=PARTS[part], seeds=chosen)
    try:
        if part == "step-time":
            _step_time(ledger, net, rounds, seconds, only, say)
        elif part == "esgd":
            rate = base.resolved().learning_rate
            assert plan is not None and rate is not None
            _esgd_contest.contend(
                ledger, base, plan, chosen, rate=rate, workers=workers, folder=out, say=say, time_limit=time_limit
            )
        else:
            _train(ledger, part, base, chosen, given["epochs"], only, say, time_limit)
        ledger.document["complete"] = True
    except KeyboardInterrupt:
        ledger.document["complete"] = False
    _conclude(ledger.document)
    ledger.save()
    return ledger.document


def _base(part: str, dataset: str, changes: Mapping[str, Any] | None) -> Recipe:
    if part == "esgd":
        base = Recipe(
            dataset=dataset, net="mlp", loader="resident", runtime="tuned", hybridize="static", learning_rate=0.05,
            base_batch_size=64, lr_scaling="none", augment="none",
        )  # fmt: skip
    else:
        base = fast_recipe(dataset)
    return base.override(**(changes or {}))


def _train(
    ledger: Study,
    part: str,
    base: Recipe,
    seeds: Sequence[int],
    epochs: Sequence[int],
    only: Sequence[str] | None,
    say: Callable[[str], None],
    time_limit: float,
) -> None:
    from gluontune import train

    pieces = PLANS[part].pieces(base, seeds, epochs, only)
    done = {r["name"] for r in ledger.document["done"]}
    for number, piece in enumerate(pieces, 1):
        if piece.name in done:
            continue
        where = f"{number} of {len(pieces)}: {piece.name}"

        def tell(event: Progress, where: str = where) -> None:
            say(f"{where}: {event['stage']} {event['detail']}")

        result: RunResult = train.run(piece.recipe, on_event=tell, time_limit=time_limit)
        if result.status == "interrupted":
            raise KeyboardInterrupt
        if ledger.path is not None:
            result.save(ledger.path.parent / "runs" / f"{piece.name.replace(', ', '-').replace(' ', '_')}.json")
        ledger.enter(describe(piece, result))


def _step_time(
    ledger: Study, net: str, rounds: int, seconds: float, only: Sequence[str] | None, say: Callable[[str], None]
) -> None:
    if not ledger.document["done"]:
        ledger.document["done"] = _optimizer_steps.measure(net=net, rounds=rounds, seconds=seconds, only=only, say=say)


def _conclude(document: dict[str, Any]) -> None:
    """Add groups, sentence and the bar's result to the document."""
    part, rows = document["given"]["part"], document["done"]
    if part == "step-time":
        document.update(_optimizer_steps.conclude(rows))
    elif part == "esgd":
        document.update(_esgd_contest.conclude(rows))
    else:
        document["groups"] = summarize(rows)
        document.update(PLANS[part].conclude(document["groups"]))


def show(found: Mapping[str, Any], console: Any) -> None:
    """Print the table and the sentence."""
    from rich.table import Table

    head, cells = table(found)
    filled = [place for place in range(len(head)) if any(line[place] for line in cells)]
    printed = Table(title=found["title"], title_justify="left")
    for place in filled:
        printed.add_column(head[place], overflow="fold")
    for line in cells:
        printed.add_row(*(line[place] for place in filled))
    console.print(printed)
    console.print(f"{'holds' if found['holds'] else 'DOES NOT HOLD'}: {found['sentence']}", soft_wrap=True)
