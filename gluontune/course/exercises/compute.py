"""Exercises of the lessons 04 and 05: symbolic execution, and number formats."""

from __future__ import annotations

from gluontune.course.exercises._registry import close, exercise, hint_for


@exercise("arrays-imperative")
def _arrays_imperative(answer: float) -> str | None:
    """Arrays that a script of a, b and four results holds."""
    if answer == 6:
        return None
    if answer == 4:
        return "Those are the results; a and b are arrays as well."
    if answer == 3:
        return "So few only a graph would hold; here each name keeps its array."
    if answer == 1:
        return "Only the last result would remain if you had used one name for all of them."
    return "Count the names that are still in use: each of them holds one array."


@exercise("arrays-symbolic")
def _arrays_symbolic(answer: float) -> str | None:
    """Arrays that the graph holds: two inputs and the one that all results share."""
    if answer == 3:
        return None
    if answer == 6:
        return "That is the imperative script; nobody asks the graph for c, d and e."
    if answer == 1:
        return "The inputs a and b are bound to it and held as well."
    if answer in (2, 4):
        return "Each result may be written over the one before it, but not over an input, which is yours."
    return "Count the inputs, and the arrays that are needed at the same time for c, d, e and f."


@exercise("break-even")
def _break_even(answer: float) -> str | None:
    """Steps until 2 s of compiling are saved by 10 ms a step."""
    if close(answer, 200, 0.006):
        return None
    return hint_for(
        answer,
        ((40, 50), "Divide by what a step saves, not by what it takes."),
        (0.2, "Compiling takes seconds and a step saves milliseconds: bring them to one unit."),
        (20, "A step saves 10 ms, and 2 s are 2,000 ms."),
        otherwise="Compiling costs 2 s once, and each step saves the difference of the two times.",
    )


@exercise("largest-float16")
def _largest_float16(answer: float) -> str | None:
    """The largest finite number of float16."""
    if answer == 65_504:
        return None
    if answer in (65_535, 65_536):
        return "That is an integer of 16 bits; the last step below 2**16 is 32 wide in float16."
    if answer == 32_768:
        return "That is the largest power of two; the significand can still grow to nearly two."
    if answer > 1e38:
        return "So far float32 and bfloat16 reach; float16 has five bits of exponent."
    return 'Look at numbers.FORMATS["float16"], or at np.finfo(np.float16).'


@exercise("next-bfloat16")
def _next_bfloat16(answer: float) -> str | None:
    """1 + 2**-7."""
    if answer == 1 + 2**-7:
        return None
    if answer == 2**-7:
        return "That is the distance; add it to 1."
    if answer == 1 + 2**-10:
        return "That is float16, with ten bits of significand."
    if answer == 1 + 2**-8:
        return "The leading one comes free, but seven bits remain after it, not eight."
    return "bfloat16 stores seven bits of the significand: the last of them is worth 2**-7 beside a 1."


@exercise("loss-scale")
def _loss_scale(answer: float) -> str | None:
    """The least power of two that lifts 1e-9 to 2**-14."""
    if answer == 2**16:
        return None
    if answer == 16:
        return "That is the exponent; the scale is 2 to its power."
    if answer == 2**6:
        return "That lifts it to the smallest number at all, with one digit left; normal ones begin at 2**-14."
    if answer > 2**16:
        return "It works, but a smaller power of two does as well."
    return "Normal numbers begin at 2**-14, about 6.1e-5: which power of two lifts 1e-9 above that?"
