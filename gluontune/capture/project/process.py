"""The process of ``gluontune migrate SCRIPT``: the first steps of its training, written as a project.

python -m gluontune.capture.project.process OPTIONS SCRIPT ARGS…
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gluontune.capture import script
from gluontune.capture.hooks import Hooks
from gluontune.capture.interpret import computes
from gluontune.capture.project.tracing import Seen, Tracing
from gluontune.core import files
from gluontune.core.errors import GluontuneError


class _Enough(BaseException):
    """All steps are there: the script is left."""


class Writing:
    """Records a script's first steps and writes its project.

    Args:
        options: ``out`` (the project's folder), ``told`` (the document's file), ``steps``. program: the script.
    """

    def __init__(self, options: dict[str, Any], program: script.Program):
        self.options, self.program = options, program
        self.seens: list[Seen] = []

    def begin(self, mx: Any) -> None:
        """MXNet was imported."""
        self.mx = mx
        self.recorder = Tracing(mx, self.program.folder, self._finished)
        self.recorder.computes = computes
        self.hooks = self.recorder.hooks = Hooks(mx, self.recorder)
        self.hooks.install()
        self.recorder.watch_mode()

    def _finished(self, seen: Seen) -> None:
        self.seens.append(seen)
        if len(self.seens) >= self.options["steps"]:
            raise _Enough

    def document(self) -> dict[str, Any]:
        """What was written, for JSON; ``refused`` is why nothing was, or None."""
        from gluontune.capture.project.writing import Project, known_of

        if not self.seens:
            return {"refused": f"{self.program.target}: no training step was seen"}
        self.hooks.remove()
        recorder = self.recorder
        known = known_of(self.seens, recorder.variable_names(), list(self.hooks.parameters))
        try:
            project = Project(
                self.mx, self.seens, known, recorder.trainers, Path(self.program.target).name, recorder.epochs
            )
            if recorder.asks_for_mode:
                project.noted.append(f"{recorder.asks_for_mode}: the net asks whether it trains; here it always does")
            return {"refused": None, **project.write(Path(self.options["out"]))}
        except (GluontuneError, self.mx.MXNetError) as error:
            return {"refused": str(error).strip().splitlines()[0]}
        except Exception as error:  # of a text that does not fit, or of the script's own objects
            if self.options.get("debug"):
                raise
            return {"refused": f"{self.program.target}: {type(error).__name__}: {str(error).strip()[:200]}"}


def main() -> None:
    """``OPTIONS SCRIPT ARGS…``: options as one JSON document."""
    options, program = json.loads(sys.argv[1]), script.Program.of(sys.argv[2:])
    writing = Writing(options, program)
    try:
        script.run(program, [writing.begin])
    except _Enough:
        pass
    except BaseException:
        if not writing.seens:
            raise
    files.write_json(Path(options["told"]), writing.document())


if __name__ == "__main__":
    main()
