"""What the changes of a running script brought: kept while it runs, told when it ends."""

from __future__ import annotations

import atexit
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gluontune.capture.names import CHANGES, THREADS
from gluontune.core import files

if TYPE_CHECKING:
    from gluontune.capture.contest import Contest
    from gluontune.capture.helpers.base import Helper


class Account(ABC):
    """What one process of ``gluontune run`` does to a script, and tells at its end.

    Args:
        options: ``began`` (seconds since the epoch), ``out`` (a file for the document, or None), and what subclasses
            read.
    """

    def __init__(self, options: Mapping[str, Any]):
        self._options, self._pid = options, os.getpid()
        atexit.register(self._end)

    @abstractmethod
    def begin(self, mx: ModuleType) -> None:
        """Mxnet was imported."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """What was done and what it brought, for JSON."""

    @abstractmethod
    def lines(self, found: Mapping[str, Any]) -> list[str]:
        """The document in a line or two."""

    @abstractmethod
    def release(self) -> None:
        """Let go of the script's objects: Python takes its modules apart next."""

    def _end(self) -> None:
        """Write the document, and the lines on stderr."""
        if os.getpid() != self._pid:  # a worker that the script forked
            return
        found = {"schema_version": 1, "seconds": time.time() - self._options["began"], **self.document()}
        if self._options.get("out"):
            files.write_json(Path(self._options["out"]), found)
        print("\n".join(f"gluontune: {line}" for line in self.lines(found)), file=sys.stderr)
        self.release()


class ChangesAccount(Account):
    """The changes of a script that MXNet computes, and the clock.

    Args:
        options: as of :class:`Account`, with ``settings`` (names of the variables that were set for this process),
            ``leave`` (names of changes that stay out) and ``dtype``.
    """

    def __init__(self, options: Mapping[str, Any]):
        super().__init__(options)
        self.helpers: list[Helper] = []
        self._contest: Contest | None = None

    def begin(self, mx: ModuleType) -> None:
        """Install the helpers, now that mxnet is there."""
        if self._options["dtype"] != "float32":
            from gluontune.compute.process import start_process

            start_process(self._options["dtype"], "cpu")
        try:
            self._install(mx)
        except Exception as error:  # another mxnet, or a module beside the script that is called like one of ours
            for helper in self.helpers:
                helper.gave_up(error)

    def _install(self, mx: ModuleType) -> None:
        from gluontune.capture.contest import Contest
        from gluontune.recipe.registry import resolve

        places = [place for name, place in CHANGES.items() if name not in self._options["leave"]]
        if "OMP_NUM_THREADS" in self._options["settings"]:
            places.insert(0, THREADS)
        for place in places:
            helper = resolve(place)()
            try:
                helper.install(mx)
            except Exception as error:
                helper.gave_up(error)
            self.helpers.append(helper)
        contest = Contest(self.helpers)
        contest.install(mx)
        self._contest = contest

    def document(self) -> dict[str, Any]:
        took = time.time() - self._options["began"]
        estimated = {h.name: h.seconds_saved for h in self.helpers if h.seconds_saved > 0}
        measured = self._contest.saved() if self._contest is not None else {}
        saved = {**estimated, **measured}
        return {
            "seconds_as_is": took + sum(saved.values()),
            "settings": self._options["settings"],
            "saved_seconds": saved,
            "estimated": [name for name in saved if name not in measured],
            "steps": self._contest.steps if self._contest else 0,
            "matches": [m.to_dict() for m in self._contest.matches] if self._contest else [],
            **{name: value for helper in self.helpers for name, value in helper.facts().items()},
            "notes": [note for helper in self.helpers for note in helper.notes],
        }

    def release(self) -> None:
        self.helpers, self._contest = [], None

    def lines(self, found: Mapping[str, Any]) -> list[str]:
        took, as_is = found["seconds"], found["seconds_as_is"]
        saved = sorted(found["saved_seconds"].items(), key=lambda item: -item[1])
        if not saved:
            outcome = "faster" if found["matches"] else "measured"
            return [f"took {took:.1f} s", f"no change inside the script was {outcome}"]
        settings = " (the allocator comes on top)" if found["settings"] else ""
        about = dict.fromkeys(found["estimated"], "about ")
        with_what = ", ".join(f"{name} {about.get(name, '')}{seconds:.1f} s" for name, seconds in saved)
        return [f"took {took:.1f} s; without the changes below about {as_is:.1f} s{settings}", with_what]
