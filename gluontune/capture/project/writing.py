"""The project of a script on disk."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.capture.events import Op
from gluontune.capture.project.batches import data_text, rendered
from gluontune.capture.project.changing import batches_as_inputs, clipped, moved, numbers_as_inputs
from gluontune.capture.project.reference import reference
from gluontune.capture.project.sections import Plan
from gluontune.capture.project.step_text import StepText, step_text
from gluontune.capture.project.tracing import Seen, Tracing
from gluontune.capture.project.trainers import TrainerText, trainer_text
from gluontune.compute._traversal import walk
from gluontune.convert.bridge.names import identifier, is_free
from gluontune.convert.migrate.copying import copied
from gluontune.convert.migrate.text import tidied
from gluontune.core.errors import GluontuneError, literal, remark
from gluontune.core.files import atomic_write
from gluontune.optim.torch_rules import Part
from gluontune.runtime.pytorch import torch

_LEAST, _COMPARED = 3, 4  # steps of one structure; those that the check compares
_RULES = '"""The rules of train.py\'s trainers, as MXNet has them. Taken from gluontune (Apache-2.0)."""\n\n'


@dataclass
class Known:
    """What a script's blocks and parameters are called in the project."""

    paths: dict[int, str] = field(default_factory=dict)  # of blocks by id
    names: dict[str, str] = field(default_factory=dict)  # of parameters
    nets: list[tuple[str, Any]] = field(default_factory=list)  # outermost blocks with parameters


def known_of(seens: Sequence[Seen], recorder: Tracing) -> Known:
    """Names after the script's variables and Gluon's structure; of parameters that no block has, too.

    Blocks without parameters that the script makes anew for each step, such as losses, share a name.
    """
    known, taken = Known(), {"model", "trainers", "step", "training", "forward"}
    fresh: dict[tuple[str, type], dict[str, set[int]]] = {}  # names, with the steps that have them
    steps: dict[int, set[int]] = {}
    for at, seen in enumerate(seens):
        for each in seen.calls:
            steps.setdefault(id(each.block), set()).add(at)
    outer = {id(c.block): c for seen in seens for c in seen.calls if c.parent is None}
    inside = {id(b) for c in outer.values() for path, b in walk(c.block) if path}
    for key, call in outer.items():
        if key in inside:
            continue
        wanted = call.name or re.sub(r"(?<!^)(?=[A-Z])", "_", type(call.block).__name__).lower()
        bare = not call.block.collect_params().keys()
        alike = fresh.setdefault((wanted, type(call.block)), {}) if bare else {}
        name = next((name for name, others in alike.items() if others.isdisjoint(steps[key])), "")
        if not name:
            while wanted in taken or not is_free(wanted):
                wanted += "_"
            name = identifier(wanted, taken)
        alike.setdefault(name, set()).update(steps[key])
        for path, block in walk(call.block):
            known.paths.setdefault(id(block), f"{name}.{path}" if path else name)
        for path, parameter in call.block._collect_params_with_prefix().items():
            known.names.setdefault(parameter.name, f"{name}.{path}")
        if not bare:
            known.nets.append((name, call.block))
    for parameter in list(recorder.hooks.parameters):
        if parameter.name not in known.names:
            known.names[parameter.name] = identifier(parameter.name, taken)
    known.names.update({name: identifier(wanted, taken) for name, wanted in recorder.variable_names().items()})
    return known


def plans_of(seens: Sequence[Seen], known: Known) -> list[Plan]:
    """The plans of consecutive steps; the last one is left out where it goes on to a next."""
    found: list[Plan] = []
    roots: set[int] = set()
    for at in range(len(seens) - 1, -1, -1):
        carried = _computed(seens[at - 1]) if at else set()
        plan = Plan(seens[at], roots, known.paths, carried)
        if found:
            after = found[0]
            plan.next_states = [int(after.value(n).name) for n in after.inputs if after.is_state(n)]
        found.insert(0, plan)
        roots = {int(plan.value(n).name) for n in plan.inputs if plan.is_state(n)}
        before = seens[at - 1].gradients if at else {}
        adds = {name for part in plan.passes if part.adds for name in part.variables}
        roots |= {before[name] for name in adds if name in before}
    goes_on = any(plan.is_state(n) for plan in found for n in plan.inputs) or roots
    return found[:-1] if goes_on and len(found) > 1 else found


def _computed(seen: Seen) -> set[int]:
    """Values that a step's operators made, but for updates by trainers."""
    events, inside = enumerate(seen.step.events), seen.inside
    ops = [e for place, e in events if isinstance(e, Op) and place not in inside]
    return {n for op in ops for n in op.outputs if seen.step.values[n].source != "mxnet"}


class Project:
    """The texts and arrays of a script's project: of its first steps, ``seens``, by a recorder without hooks."""

    def __init__(self, recorder: Tracing, seens: Sequence[Seen], script: str):
        self.mx, self.known, self.script = recorder.mx, known_of(seens, recorder), remark(script)
        self.epochs, mode, self.noted = recorder.epochs, recorder.asks_for_mode, list[str]()
        if mode:
            self.noted.append(f"{mode}: the net asks whether it trains; here it always does")
        for seen in seens:
            if seen.step.unknown:
                raise GluontuneError(seen.step.unknown[0])
        clipped(seens)
        moved(seens)
        updated = [told for seen in seens for told in seen.updates]
        self.frozen = {p.name for told in updated for p in told.trainer._params if p.grad_req == "null"}
        try:
            run, self.text = self._run(seens, recorder.trainers)
        except GluontuneError:
            batches_as_inputs(seens)
            run, self.text = self._run(seens, recorder.trainers)
        self.plans = run[:_COMPARED]
        updates: dict[int, list[Any]] = {}
        for plan in run:
            for told in plan.seen.updates:
                updates.setdefault(id(told.trainer), []).append((plan, told))
        self.trainers = [trainer_text(recorder.trainers[key], found) for key, found in updates.items()]
        if len({trainer.operator for trainer in self.trainers}) > 1:
            raise GluontuneError(f"{self.trainers[-1].line}: rules in C++ and in Python in one project have no text")

    def _run(self, seens: Sequence[Seen], trainers: dict[int, str]) -> tuple[list[Plan], StepText]:
        plans = plans_of(seens, self.known)
        if numbers_as_inputs(plans):
            plans = plans_of(seens, self.known)
        return _longest(plans, [step_text(plan, self.known.names, self.frozen, trainers) for plan in plans])

    def write(self, place: Path) -> dict[str, Any]:
        """Write all files. Returns what the command tells."""
        library, names, first = torch(), self.known.names, self.plans[0]
        arrays, kind, steady, apart = reference(self.mx, self.plans, names)
        steps = len(apart)
        if steps < len(self.plans):
            self.noted.append(
                f"{self.script}: its losses at step {steps} are {apart[-1]:.0e} from those in float64: rounding "
                f"decides what follows, and {steps} steps are compared"
            )
        declared = {name for call in _roots(first) for name in call.graph.variables()}
        weights = {names[n]: library.from_numpy(np.array(a, order="C"))
                   for n, a in first.arrays.items() if n in declared}  # fmt: skip
        for trainer in self.trainers:
            arrays[f"count/{trainer.name}"] = np.array(trainer.count)
            for name, states in trainer.states.items():
                arrays.update({f"moments/{trainer.name}/{names[name]}/{i}": a for i, a in enumerate(states)})
        data, by_hand = data_text(self.plans, place)
        used = {**self.text.used, **data.used}
        texts = {"train.py": self._train(), "data.py": data.text, "check.py": self._check(steps, kind, steady)}
        if self.text.model.count("\nclass ") or self.text.nets:
            texts["model.py"] = self.text.model
        if self.trainers:
            texts["rules.py"] = self._rules()
        if used:
            texts["operators.py"] = copied(used)
        noted = [f"{t.line}: {t.noted}" for t in self.trainers if t.noted] + self.noted
        hand = "\n".join(f"- {one}" for one in [*by_hand, *noted]) or "Nothing."
        texts["README.md"] = rendered("README.md.j2", script=self.script, steps=steps, hand=hand)
        texts["pyproject.toml"] = "[tool.ruff]\nline-length = 110\n"
        texts["requirements.txt"] = f"torch>={library.__version__.split('+')[0].rsplit('.', 1)[0]}\nnumpy\n"
        texts["names.json"] = json.dumps({names[n]: n for n in names if names[n] in weights}, indent=1) + "\n"
        for name, text in texts.items():
            with atomic_write(place / name) as stream:
                stream.write((tidied(text) if name.endswith(".py") else text).encode("utf-8"))
        with atomic_write(place / "weights.pt") as stream:
            library.save(weights, stream)
        with atomic_write(place / "reference.npz") as stream:
            np.savez(stream, **arrays)
        return {"steps": steps, "nets": [name for name, _ in self.known.nets], "by_hand": [*by_hand, *noted],
                "parameters": sum(w.numel() for w in weights.values()), "losses": len(first.heads)}  # fmt: skip

    def _check(self, steps: int, kind: str, steady: bool) -> str:
        first = self.plans[0]
        given = [first.names[n] for n in first.inputs if not first.is_state(n)]
        states = sum(first.is_state(n) for n in first.inputs)
        settings = {
            "STEPS": steps,
            "STATES": states,
            "INPUTS": json.dumps(given),
            "KIND": f'"{kind}"',
            "STEADY": steady,
        }
        lines = "\n".join(f"{name} = {value}" for name, value in settings.items())
        return rendered("check.py.j2", settings=lines)

    def _rules(self) -> str:
        operator = self.trainers[0].operator
        named = {t.rule: t.run for t in self.trainers}
        counts = {t.rule: len(next(iter(t.states.values()), [])) for t in self.trainers}
        if not operator:
            named["Part"] = Part
        return copied(named, _RULES, rendered("rules.py.j2", operator=operator, states=_shown(counts)))

    def _train(self) -> str:
        first, names = self.plans[0], self.known.names
        for trainer in self.trainers:
            decays = {names[p]: wd for p, wd in trainer.wd.items()}
            values = set(decays.values())
            vars(trainer).update(
                decay=repr(values.pop()) if len(values) == 1 else _shown({n: wd for n, wd in decays.items() if wd}),
                rates=_shown({names[p]: m for p, m in trainer.lr_mult.items()}), numbers=_shown(trainer.options),
                chosen=f"[{', '.join(map(literal, self._chosen(trainer)))}]",
            )  # fmt: skip
        epochs, where = self.epochs
        classes = set(re.findall(r"^class (\w+)", self.text.model, re.MULTILINE))
        used = {name for name in classes if re.search(rf"\b{name}\(", self.text.training)}
        rules = sorted({"Trainer", *(t.rule for t in self.trainers)}) if self.trainers else []
        return rendered(
            "train.py.j2", script=self.script, epochs=epochs, rules=rules,
            epochs_from=f"  # {remark(where)}" if where else "", line=first.line or self.script,
            training=self.text.training.rstrip(), build=self.text.build, step=self.text.step, trainers=self.trainers,
            imports=sorted({*used, *self.text.nets}), helpers=self.text.helpers,
            text=" ".join(t.rate for t in self.trainers),
        )  # fmt: skip

    def _chosen(self, trainer: TrainerText) -> list[str]:
        """Beginnings of the parameters' names that are no other's."""
        mine = {self.known.names[p] for p in trainer.parameters}
        others = {self.known.names[n] for n in self.known.names} - mine
        others -= {self.known.names[n] for n in self.frozen if n in self.known.names}
        tops = sorted({name.partition(".")[0] + "." if "." in name else name for name in mine})
        return tops if not any(name.startswith(tuple(tops)) for name in others) else sorted(mine)


def _shown(numbers: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{literal(key)}: {literal(value)}' for key, value in numbers.items())}}}"


def _roots(plan: Plan) -> list[Any]:
    return [part.call for part in plan.parts if hasattr(part, "call")]


def _longest(plans: Sequence[Plan], texts: Sequence[StepText]) -> tuple[list[Plan], StepText]:
    """The first consecutive steps of one text: three at least."""
    runs: list[list[int]] = []
    for at, text in enumerate(texts):
        before = texts[runs[-1][-1]] if runs else None
        same = before and (before.model, before.training, before.step) == (text.model, text.training, text.step)
        runs[-1].append(at) if same else runs.append([at])
    best = max(runs, key=len, default=[])
    if len(best) < _LEAST:
        line = next((plan.line for plan in plans if plan.line), "")
        raise GluontuneError(f"{line}: {len(runs)} structures in {len(plans)} steps; a project has one")
    return [plans[at] for at in best], texts[best[0]]
