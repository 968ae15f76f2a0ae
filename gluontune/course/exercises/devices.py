"""Exercises of the lesson 07: several devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluontune.course.exercises._registry import close, exercise, hint_for


@exercise("efficiency")
def _efficiency(answer: float) -> str | None:
    """Percent of four times 17,000 that 50,000 are."""
    truth = 100 * 50_000 / (4 * 17_000)
    if close(answer, truth, 0.01):
        return None
    return hint_for(
        answer,
        (truth / 25, "That is the gain; the efficiency is the gain for each device, in percent."),
        (truth / 100, "That is a share of 1; the question asks for percent."),
        (4 * truth, "That is the gain in percent; share it among the four devices."),
        (
            (34, 100 * 100 / truth, 136),
            "Turn the fraction over: what was reached, divided by what four times one would be.",
        ),
        otherwise="Divide what the four reached by four times what one reaches.",
    )


@exercise("ring-bytes")
def _ring_bytes(answer: float) -> str | None:
    """Million bytes that a rank of 4 sends: 2 · 3/4 · 100."""
    if close(answer, 150, 0.01):
        return None
    return hint_for(
        answer,
        (150e6, "Right, but in bytes; the question asks for million bytes."),
        (100, "That is the gradient itself; a rank of a ring sends 2 (n − 1) / n of it."),
        (75, "That is half of the way: the sums go round once, and then the results do."),
        (37.5, "Those are the numbers; each float32 has four bytes."),
        (600, "That is what all four send together; the question is about each of them."),
        (200, "So much goes to a server and back; the ring saves one part in n."),
        otherwise="The gradient has 4 · 25 million bytes. In n pieces, each rank sends n − 1 pieces, twice.",
    )


@exercise("write-partition", takes="function")
def _write_partition(answer: Callable[..., Any]) -> str | None:
    """Equally many different images for each of 4 ranks, of 103."""
    n, world = 103, 4
    try:
        parts = [[int(i) for i in answer(n, rank, world)] for rank in range(world)]
    except Exception as error:
        return f"Called with (103, 0, 4) it does not give a list of whole numbers: {error}"
    whole = [i for part in parts for i in part]
    if whole and not 0 <= min(whole) <= max(whole) < n:
        return f"The images are 0 to 102; it gives {min(whole)} to {max(whole)}."
    if len({tuple(part) for part in parts}) == 1:
        return "All ranks get the same images: then four of them do the work of one."
    if len({len(part) for part in parts}) > 1:
        sizes = ", ".join(str(len(part)) for part in parts)
        return f"For 103 images the ranks get {sizes}: whoever has more would wait for ever in the last exchange."
    if len(set(whole)) < len(whole):
        return "Some images are given to more than one rank."
    if len(whole) < n - world + 1:
        return f"{n - len(whole)} of 103 images are left out; at most 3 need to be."
    return None


@exercise("exchange-share")
def _exchange_share(answer: float) -> str | None:
    """10 ms of exchange beside twice 30 ms of work, in percent."""
    if close(answer, 1000 / 70, 0.01):
        return None
    if close(answer, 1 / 7, 0.01):
        return "Right as a share; the question asks for percent."
    if close(answer, 25):
        return "That is its share now; twice the batch is twice the work."
    if close(answer, 12.5):
        return "The exchange is not twice as long: only the 30 ms of work are."
    if close(answer, 1000 / 60, 0.01):
        return "The step is the work and the exchange together."
    return "30 ms are work. Twice the batch doubles them, and the exchange stays at 10 ms."
