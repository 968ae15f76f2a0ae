"""The process of ``gluontune capture``: the first steps of a script's training, understood and proven.

python -m gluontune.capture.capturing OPTIONS SCRIPT ARGS…
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, cast

from gluontune.capture import script
from gluontune.capture.events import Step, Value
from gluontune.capture.hooks import Hooks
from gluontune.capture.interpret import computes
from gluontune.capture.program import StepProgram, program_of
from gluontune.capture.proof import Gaps, gaps_in_float64, gaps_of_the_script, rounded
from gluontune.capture.recorder import Recorder
from gluontune.capture.sources import describe, let_go
from gluontune.core import files
from gluontune.core.errors import GluontuneError, first_line

SCHEMA = 1
#: For proofs in float64 of kinds that have one: MXNet's convolutions take a hundred times as long in it. Where rounding
#: hides whether float32 agrees, two steps are enough then.
_EXACT_S = 10.0  # of the processor


class _Enough(BaseException):
    """All steps are there: the script is left."""


class FirstSteps(ABC):
    """A script that is run until enough of its steps are seen.

    Args:
        options: ``out`` (the document's file), ``steps`` (training steps to look at). program: the script.
    """

    def __init__(self, options: dict[str, Any], program: script.Program):
        self.options, self.program = options, program
        self.seen, self.recorder = 0, cast(Any, None)

    def begin(self, mx: Any) -> None:
        """MXNet was imported."""
        _give_back()
        self.mx = mx
        self.recorder = self.recorder_of(mx)
        self.recorder.computes = computes
        self.hooks = self.recorder.hooks = Hooks(mx, self.recorder)
        self.hooks.install()

    @abstractmethod
    def recorder_of(self, mx: Any) -> Any:
        """What records."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """What was learned, for JSON."""

    def leave(self) -> None:
        """Leave the script."""
        raise _Enough

    @classmethod
    def main(cls) -> None:
        """``OPTIONS SCRIPT ARGS…``: options as one JSON document."""
        options, program = json.loads(sys.argv[1]), script.Program.of(sys.argv[2:])
        steps = cls(options, program)
        try:
            script.run(program, [steps.begin])
            if steps.recorder is not None:
                steps.recorder.end()  # the last step, which no other one has ended
        except _Enough:
            pass
        except BaseException:
            if not steps.seen:
                raise
        files.write_json(Path(options["out"]), steps.document())


class Capturing(FirstSteps):
    """Records a script's first steps and proves each."""

    def __init__(self, options: dict[str, Any], program: script.Program):
        super().__init__(options, program)
        self.last: Step | None = None
        self.found: list[tuple[StepProgram, dict[int, Value]]] = []  # with the values of the step before
        self.before: dict[int, Value] = {}
        self.updates: list[dict[str, Any]] = []
        self.gaps: list[Gaps] = []
        self.exact: set[str] = set()  # kinds that were proven in float64
        self.exact_s = 0.0
        self.script: list[Gaps] = []
        self.refused = ""

    def recorder_of(self, mx: Any) -> Recorder:
        return Recorder(mx, self.program.folder, self._finished)

    def _finished(self, step: Step) -> None:
        last, self.last, self.seen = self.last, step, self.seen + 1
        if last is not None:
            self._take(last, step)
        if self._has_enough():
            self.leave()

    def _has_enough(self) -> bool:
        dear = self.exact_s > _EXACT_S and len(self.found) > 1 and not self.script[-1].agree()
        return bool(self.refused) or dear or len(self.found) >= self.options["steps"]

    def _take(self, step: Step, after: Step | None) -> None:
        """Prove a step, whose states the next one shows."""
        earlier = [v.name for v in after.values.values() if v.source == "earlier" and v.name] if after else []
        program = program_of(step, [int(name) for name in earlier if int(name) in step.values])
        self.updates += step.updates
        try:
            if step.unknown:
                raise GluontuneError(step.unknown[0])
            self.script.append(gaps_of_the_script(program))
            known = program.key in self.exact and self.script[-1].agree()
            if not known or self.exact_s < _EXACT_S:
                began = time.process_time()  # other programs do not count
                self.gaps.append(gaps_in_float64(self.mx, program))
                self.exact.add(program.key)
                self.exact_s += time.process_time() - began
        except (GluontuneError, RuntimeError, ValueError, TypeError, IndexError, self.mx.MXNetError) as error:
            self.refused = first_line(error)
        let_go(step, program)
        self.found.append((program, self.before))
        self.before = step.values

    def document(self) -> dict[str, Any]:
        """What was learned, for JSON."""
        if self.last is not None and not self._has_enough():
            self.hooks.remove()  # what the proof computes is no part of the script
            self._take(self.last, None)
        kinds: dict[str, list[tuple[StepProgram, dict[int, Value]]]] = {}
        for program, before in self.found:
            kinds.setdefault(program.key, []).append((program, before))
        exact = not any(rounded(found[0][0]) for found in kinds.values())
        bad = [gaps for gaps in self.gaps if not gaps.agree("float64" if exact else "float32")]
        if not self.found:
            self.refused = self.refused or "no training step was seen"
        if bad and not self.refused:
            self.refused = f"PyTorch's results differ: {bad[0]}"
        return {
            "schema_version": SCHEMA,
            "refused": self.refused or None,
            "steps": len(self.found),
            "steps_float64": len(self.gaps),
            "gaps_float64": _worst(self.gaps),
            "gaps_of_the_script": _worst(self.script),
            "seven_digits": not exact,
            "trainers": _trainers(self.updates),
            "kinds": [
                {
                    "key": key,
                    "steps": len(found),
                    "instructions": len(found[0][0].instructions),
                    "operators": found[0][0].operators(),
                    "leaves": describe(*zip(*found)),
                }
                for key, found in kinds.items()
            ],
        }


def _give_back() -> None:
    """Have large arrays go back to the system when they are freed: copies and replays would leave a heap of holes."""
    library = ctypes.CDLL(None)
    for setting, number in ((-4, 65536), (-3, 4 << 20), (-1, 64 << 20)):  # M_MMAP_MAX, _THRESHOLD, M_TRIM_THRESHOLD
        if hasattr(library, "mallopt"):
            library.mallopt(setting, number)


def _worst(gaps: list[Gaps]) -> dict[str, float | None] | None:
    return Gaps(*[max(found) for found in zip(*[vars(one).values() for one in gaps])]).to_dict() if gaps else None


def _trainers(updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for update in updates:
        known = found.setdefault(update["line"], {**update, "learning_rates": []})
        known.pop("learning_rate", None)
        known["batch_size"] = _plain(known["batch_size"])
        known["learning_rates"].append(_plain(update["learning_rate"]))
    return list(found.values())


def _plain(number: Any) -> Any:
    """A number for JSON; scripts that count words give ``Trainer.step`` an array."""
    return number if isinstance(number, (int, float)) else float(number)


if __name__ == "__main__":
    Capturing.main()
