"""What the commands share."""

from __future__ import annotations

from gluontune.cli._common import names_of
from gluontune.errors import UsageError

__all__ = ["numbers_of"]


def numbers_of(flag: str, text: str, least: int = 1) -> list[int]:
    """The whole numbers between commas, at least ``least``; ``flag`` is named in the error.

    >>> numbers_of("--seeds", "0, 1", least=0)
    [0, 1]
    """
    found = names_of(text, flag) or []
    if not found or not all(part.isdigit() and int(part) >= least for part in found):
        raise UsageError(f"{flag} {text!r}: give whole numbers of at least {least}, such as 1,4,16")
    return [int(part) for part in found]
