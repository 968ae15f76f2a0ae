"""Exercises of the lessons 02 and 03: workers, and record files."""

from __future__ import annotations

from gluontune.course.exercises._registry import close, exercise, hint_for


@exercise("record-bytes")
def _record_bytes(answer: float, payload: int) -> str | None:
    """Bytes that a record with an image of ``payload`` bytes takes in the file."""
    body = 24 + payload
    truth = 8 + body + -body % 4
    if answer == truth:
        return None
    if answer == payload:
        return "That is the image alone; magic, length, flag, label and two ids stand before it."
    if answer == 8 + body:
        return "Nearly: the next record starts at a multiple of four, so zeros follow the image."
    if answer in (body, body + -body % 4):
        return "You have counted flag, label and ids; magic and length come before them."
    return "Add up the table of fields: the image starts at byte 32, and the record ends at a multiple of four."


@exercise("label-limit")
def _label_limit(answer: float) -> str | None:
    """The whole number up to which float32 holds every whole number."""
    if answer == 2**24:
        return None
    if answer == 2**24 - 1:
        return "One more: the next whole number is a power of two, and exact as well."
    if answer in (2**23, 2**23 - 1):
        return "float32 stores 23 bits of the significand, and the leading one comes free."
    if answer in (2**31, 2**31 - 1, 2**32, 2**32 - 1):
        return "So far an integer of 32 bits reaches; a float32 spends 8 of its bits on the exponent."
    return "Try it: int(np.float32(n)) == n holds for every n up to the answer, and fails for the next one."


@exercise("feed-rate")
def _feed_rate(answer: float) -> str | None:
    """Images a second for a device that takes 25 ms for a batch of 256."""
    truth = 256 / 0.025
    if close(answer, truth):
        return None
    return hint_for(
        answer,
        (40, "Those are batches a second; each of them holds 256 images."),
        (truth / 1000, "That is images a millisecond; the question asks for a second."),
        ((256 * 25 / 1000, 256 * 25), "Divide the images by the time; you have multiplied."),
        otherwise="256 images every 25 ms: how many in 1000 ms?",
    )


@exercise("workers-needed")
def _workers_needed(answer: float) -> str | None:
    """Workers of 200 images/s for a device that takes 1,100."""
    if answer == 6:
        return None
    if answer == 5:
        return "Five workers make 1,000 images/s: the device would still wait."
    if close(answer, 5.5):
        return "There are no halves of a worker; which whole number is enough?"
    if answer > 6:
        return "It would be fed, but with fewer as well; each worker takes a core and memory."
    return "Divide what the device takes by what one worker makes, and round up."


@exercise("step-serial")
def _step_serial(answer: float) -> str | None:
    """Milliseconds of a step that loads 80 ms, then computes 50 ms."""
    if answer == 130:
        return None
    if answer == 80:
        return "So long it is if loading and computing overlap; without workers they follow each other."
    if answer == 50:
        return "That is the computing alone; the device waits for its batch before."
    if answer == 65:
        return "A step needs both, one after the other: add, do not average."
    return "Without workers nothing happens at the same time."


@exercise("step-overlapped")
def _step_overlapped(answer: float) -> str | None:
    """Milliseconds of a step whose loading, 80 ms, runs beside its computing, 50 ms."""
    if answer == 80:
        return None
    if answer == 50:
        return "The device would be done, but the next batch is not there yet."
    if answer == 130:
        return "That is without a worker; now both run at the same time."
    if answer == 30:
        return "So long the device waits in each step; how long is the whole step?"
    return "Both run at the same time, so the slower of them sets the pace."
