"""What ``--only`` keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gluontune.core.errors import UsageError

__all__ = ["selected"]


def selected(names: Iterable[str], only: Sequence[str] | None) -> list[str]:
    """The names that ``only`` means, in their order; a word that is a name itself means that one alone.

    Args:
        names: of all contenders, groups or trainings.
        only: whole names or parts of them; None or nothing keeps all.

    Raises:
        UsageError: a word that no name holds.

    >>> selected(["sgd", "lbsgd", "nag"], ["sgd"]), selected(["sgd", "lbsgd", "nag"], ["gd"])
    (['sgd'], ['sgd', 'lbsgd'])
    """
    every = list(dict.fromkeys(names))
    if not only:
        return every
    kept = set()
    for word in only:
        meant = {word} & set(every) or {name for name in every if word in name}
        if not meant:
            raise UsageError(f"--only {word!r}: no name holds this; there are {', '.join(every)}")
        kept |= meant
    return [name for name in every if name in kept]
