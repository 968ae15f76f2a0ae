"""The process of ``gluontune capture`` and ``gluontune migrate SCRIPT``: a script's first steps, proven or written.

python -m gluontune.capture.capturing OPTIONS SCRIPT ARGS…
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, cast

from gluontune.capture.events import Step, Value
from gluontune.capture.program import StepProgram, describe, let_go, program_of
from gluontune.capture.project.tracing import Tracing
from gluontune.capture.proof import Gaps, gaps_in_float64, gaps_of_the_script, rounded
from gluontune.capture.recorder import Recorder
from gluontune.capture.running import run
from gluontune.capture.script import Program
from gluontune.core import files
from gluontune.core.errors import GluontuneError, first_line

SCHEMA = 1
#: For proofs in float64 of kinds that have one: MXNet's convolutions take a hundred times as long in it. Where rounding
#: hides whether float32 agrees, two steps are enough then.
_EXACT_S = 10.0  # of the processor


class _Enough(BaseException):
    """All steps are there: the script is left."""


class FirstSteps(ABC):
    """A script that is run until ``options["steps"]`` of its steps are seen; ``out`` names the document's file.

    ``seconds`` after MXNet is there, :class:`Capturing` leaves it with two steps, too.
    """

    records: Any = Recorder

    def __init__(self, options: dict[str, Any], program: Program):
        self.options, self.program = options, program
        self.seen, self.recorder, self.until = 0, cast(Any, None), math.inf

    def begin(self, mx: Any) -> None:
        _give_back()
        self.mx = mx
        self.recorder = self.records(mx, self.program.folder, self.finished)
        self.hooks = self.recorder.hooks
        self.until = time.perf_counter() + self.options.get("seconds", math.inf)
        self.hooks.install()

    @abstractmethod
    def finished(self, step: Any) -> None:
        """A step has been recorded."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """What was learned, for JSON."""


class Capturing(FirstSteps):
    """Records a script's first steps and proves each."""

    def __init__(self, options: dict[str, Any], program: Program):
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

    def finished(self, step: Any) -> None:
        last, self.last, self.seen = self.last, step, self.seen + 1
        if last is not None:
            self._take(last, step)
        if self._has_enough():
            raise _Enough

    def _has_enough(self) -> bool:
        dear = self.exact_s > _EXACT_S and not self.script[-1].agree() if self.script else False
        late = len(self.found) > 1 and (dear or time.perf_counter() > self.until)
        return bool(self.refused) or late or len(self.found) >= self.options["steps"]

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
        if self.last is not None and not self._has_enough():
            self.hooks.remove()  # what the proof computes is no part of the script
            self._take(self.last, None)
        kinds: dict[str, list[tuple[StepProgram, dict[int, Value]]]] = {}
        for found in self.found:
            kinds.setdefault(found[0].key, []).append(found)
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


class Writing(FirstSteps):
    """Records a script's first steps and writes its project into ``options["project"]``."""

    records = Tracing

    def __init__(self, options: dict[str, Any], program: Program):
        super().__init__(options, program)
        self.seens: list[Any] = []

    def begin(self, mx: Any) -> None:
        super().begin(mx)
        self.recorder.watch_mode()

    def finished(self, step: Any) -> None:
        self.seens.append(step)
        self.seen += 1
        if self.seen >= self.options["steps"]:
            raise _Enough

    def document(self) -> dict[str, Any]:
        from gluontune.capture.project.writing import Project

        if not self.seens:
            return {"refused": f"{self.program.target}: no training step was seen"}
        self.hooks.remove()
        try:
            project = Project(self.recorder, self.seens, Path(self.program.target).name)
            return {"refused": None, **project.write(Path(self.options["project"]))}
        except (GluontuneError, self.mx.MXNetError) as error:
            return {"refused": first_line(error)}
        except Exception as error:  # of a text that does not fit, or of the script's own objects
            return {"refused": f"{self.program.target}: {type(error).__name__}: {str(error).strip()[:200]}"}


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


def main() -> None:
    """``OPTIONS SCRIPT ARGS…``: options as one JSON document."""
    options, program = json.loads(sys.argv[1]), Program.of(sys.argv[2:])
    steps = (Writing if "project" in options else Capturing)(options, program)
    try:
        run(program, [steps.begin])
        if steps.recorder is not None:
            steps.recorder.end()  # the last step, which no other one has ended
    except _Enough:
        pass
    except BaseException:
        if not steps.seen:
            raise
    files.write_json(Path(options["out"]), steps.document())


if __name__ == "__main__":
    main()
