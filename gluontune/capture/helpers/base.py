"""What a change in place is: a name, a sentence, and how the running script comes under it and out of it again."""

from __future__ import annotations

import abc
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("gluontune.capture")
_TICK_S = 0.02


class Helper(abc.ABC):
    """One change of a running script: it patches MXNet when the script imports it.

    What it patches calls MXNet's own code unless there is something better to do. An error of its own switches it off.

    Attributes:
        name: in one or two words.
        states: names of the ways in which it can do it, beside leaving the script as it is; empty until there are some.
        state: the one in force; "" leaves the script as it is.
        trusted: the state that is in force before its contest, which may take it back; "" where there is none.
        seconds_saved: estimated, where slices of steps cannot show it.
        notes: what it left alone, and why.
        costs_short_steps: a match of it may cost a script of short steps much: others come first there, and where steps
            are of Python alone it is not tried.
    """

    name = ""
    trusted = ""
    costs_short_steps = False

    def __init__(self) -> None:
        self.states: list[str] = []
        self.state = self.trusted
        self.seconds_saved = 0.0
        self.notes: list[str] = []
        self.broken = False

    @abc.abstractmethod
    def install(self, mx: Any) -> None:
        """Patch MXNet, which the script has just imported."""

    def after_step(self, step: int, seconds: float) -> None:  # noqa: B027 - most have nothing to do
        """Called after each step of the training with its number, and how long the training has run."""

    @property
    def waits(self) -> bool:
        """Whether it will know more without another step."""
        return False

    def awaited(self, step: int, seconds: float) -> None:
        """Wait until it knows all that it will know by this step."""
        while self.waits:
            time.sleep(_TICK_S)
            self.after_step(step, seconds)

    @property
    def took_over(self) -> bool:
        """Whether it has changed what the script's steps take without a contest: others are then measured anew."""
        return False

    def settled(self, left: list[str]) -> None:  # noqa: B027
        """Called when a contest is over; ``left`` are the states that will still be tried."""

    def facts(self) -> dict[str, Any]:
        """What the document says of it, beside what contests measured."""
        return {}

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def gave_up(self, error: BaseException) -> None:
        """Leave the script alone from now on."""
        self.broken, self.state, self.states = True, "", []
        self.note(f"{self.name}: left alone after an error of gluontune's ({type(error).__name__}: {error})")
        logger.debug("%s", self.name, exc_info=error)


def patched(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Have calls of ``owner.name`` call ``around(original, …)``."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, method)


def with_subclasses(kind: Any) -> list[Any]:
    """A class and all that were made of it."""
    return [kind, *[each for one in kind.__subclasses__() for each in with_subclasses(one)]]
