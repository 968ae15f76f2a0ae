"""The process of ``gluontune migrate SCRIPT``: the first steps of its training, written as a project.

python -m gluontune.capture.project.process OPTIONS SCRIPT ARGS…
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gluontune.capture import script
from gluontune.capture.capturing import FirstSteps
from gluontune.capture.project.tracing import Seen, Tracing
from gluontune.core.errors import GluontuneError, first_line


class Writing(FirstSteps):
    """Records a script's first steps and writes its project into the folder ``options["project"]``."""

    def __init__(self, options: dict[str, Any], program: script.Program):
        super().__init__(options, program)
        self.seens: list[Seen] = []

    def recorder_of(self, mx: Any) -> Tracing:
        return Tracing(mx, self.program.folder, self._finished)

    def begin(self, mx: Any) -> None:
        super().begin(mx)
        self.recorder.watch_mode()

    def _finished(self, seen: Seen) -> None:
        self.seens.append(seen)
        self.seen += 1
        if self.seen >= self.options["steps"]:
            self.leave()

    def document(self) -> dict[str, Any]:
        """What was written, for JSON; ``refused`` is why nothing was, or None."""
        from gluontune.capture.project.writing import Project, known_of

        if not self.seens:
            return {"refused": f"{self.program.target}: no training step was seen"}
        self.hooks.remove()
        recorder = self.recorder
        try:
            known = known_of(self.seens, recorder.variable_names(), list(self.hooks.parameters))
            project = Project(
                self.mx, self.seens, known, recorder.trainers, Path(self.program.target).name, recorder.epochs
            )
            if recorder.asks_for_mode:
                project.noted.append(f"{recorder.asks_for_mode}: the net asks whether it trains; here it always does")
            return {"refused": None, **project.write(Path(self.options["project"]))}
        except (GluontuneError, self.mx.MXNetError) as error:
            return {"refused": first_line(error)}
        except Exception as error:  # of a text that does not fit, or of the script's own objects
            if self.options.get("debug"):
                raise
            return {"refused": f"{self.program.target}: {type(error).__name__}: {str(error).strip()[:200]}"}


if __name__ == "__main__":
    Writing.main()
