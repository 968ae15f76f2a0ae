"""The structure of a damaged record file: its records, and the breaks of the chain.

An aligned magic number is always a header, so that after a break the chain goes on at the next of them. A cut may shift
the following bytes by one to three: headers at these phases are believed only if a record or the file's end follows, or
if their bytes are known from the checksums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import numpy as np

from gluontune.records.layout import HEAD, MAGIC, DamagedRecordError, part_spans, starts_record

CHUNK = 64 << 20


class Found(NamedTuple):
    """A record with correct framing.

    ``doubtful``: no record follows its end, so its length may be wrong. ``holds``: the start of another one inside it.
    """

    offset: int
    behind: int
    spans: list[tuple[int, int]]
    doubtful: bool = False
    holds: int | None = None


class Broken(NamedTuple):
    """An offset without a record; ``until`` is the start of the next one."""

    offset: int
    until: int
    reason: str


Known = Callable[[Found], bool]


def joined(view: memoryview, found: Found) -> Any:
    """The record's bytes: a view for one part, else joined."""
    if len(found.spans) == 1:
        return view[slice(*found.spans[0])]
    return MAGIC.join(view[start:stop] for start, stop in found.spans)


class _Heads:
    """Offsets of magic numbers, for each of the four phases on demand."""

    def __init__(self, view: memoryview):
        self.view = view
        self._phases: dict[int, np.ndarray] = {}

    def phase(self, phase: int) -> np.ndarray:
        if phase not in self._phases:
            count = max(0, len(self.view) - phase) // 4
            words = np.frombuffer(self.view, "<u4", count, phase) if count else np.zeros(0, "<u4")
            step = CHUNK // 4
            hits = [np.flatnonzero(words[i : i + step] == 0xCED7230A) + i for i in range(0, count, step)]
            self._phases[phase] = np.concatenate([np.zeros(0, np.int64), *hits]) * 4 + phase
        return self._phases[phase]

    def between(self, phase: int, start: int, stop: int) -> np.ndarray:
        """Heads of a phase in [start, stop)."""
        heads = self.phase(phase)
        low, high = np.searchsorted(heads, [start, stop])
        return heads[low:high]

    def others(self, own: int, start: int, stop: int) -> list[int]:
        """Heads of the three other phases than ``own`` in [start, stop), in order."""
        found: list[int] = []
        for phase in {0, 1, 2, 3} - {own}:
            found += self.between(phase, start, stop).tolist()
        return sorted(found)


def walk(view: memoryview, known: Known, familiar: Known) -> Iterator[Found | Broken]:
    """All records and breaks from the first byte to the last, each when it is final.

    ``known``: whether a record's bytes are known by their checksum. ``familiar``: whether its header has a key of the
    index or the checksums: enough to believe that a record starts there, though not that it is whole.
    """
    heads = _Heads(view)

    def believe(found: Found) -> bool:
        return not found.doubtful or familiar(found) or known(found)

    size, at = len(view), 0
    before: Found | None = None
    waiting = False  # is ``before`` still to be yielded?
    while at < size:
        found, reason, resume = _try(view, heads, at)
        if found is None:
            unsure = before is not None and before.behind == at and not known(before)
            until = _next(view, heads, resume, before.offset + 1 if before and unsure else at + 1, believe)
            false_end = before is not None and until < at  # it ended at bytes that look like a header
            if before is not None and waiting:
                yield before._replace(doubtful=True) if false_end else before
            if not false_end:
                yield Broken(at, until, reason)
            before, waiting, at = None, False, until
            continue
        if before is not None and waiting:
            yield before
        before, waiting = found, not found.doubtful
        if found.doubtful:
            yield found
            # Its length may be wrong, or its padding missing, so the next record may start inside it; if a known one
            # ends with bytes of a header before a cut, these may belong to the next one, too.
            inside = max(at + 1, found.spans[-1][1] - HEAD.size + 1) if known(found) else at + 1
            at = min(found.behind, size)
            until = _next(view, heads, at, inside, believe)
            if until > at:
                yield Broken(at, until, _why(view, at))
            at = until
        else:
            at = min(found.behind, size)
            if at == size:
                at = _swallowed(view, heads, found, known, familiar)
                before = found._replace(holds=at if at < size else None)
    if before is not None and waiting:
        yield before


def _why(view: memoryview, at: int) -> str:
    try:
        part_spans(view, at, len(view))
    except DamagedRecordError as error:
        return str(error)
    return f"no record starts at byte {at:,}"


def _try(view: memoryview, heads: _Heads, at: int) -> tuple[Found | None, str, int]:
    """The record at ``at``; else the reason, and the offset where the search goes on."""
    size = len(view)
    try:
        spans, behind = part_spans(view, at, size)
    except DamagedRecordError as error:
        return None, str(error), at + 4
    inside = heads.between(at % 4, at, behind)
    if len(inside) != len(spans):
        own = {start - 8 for start, _ in spans}
        first = next(int(h) for h in inside if int(h) not in own)
        return None, f"wrong length: another record starts inside it, at byte {first:,}", first
    follows = behind >= size or view[behind : behind + 4] == MAGIC
    return Found(at, behind, spans, not follows), "", at


def _next(view: memoryview, heads: _Heads, own_start: int, other_start: int, believe: Known) -> int:
    """The next start of a record after a break, in the phase of ``own_start`` or in another."""
    size = len(view)
    firsts = (int(h) for h in heads.between(own_start % 4, own_start, size) if starts_record(view, int(h)))
    nearest = limit = next(firsts, size)
    while limit < size:
        found, _, _ = _try(view, heads, limit)
        if found is not None and believe(found):
            break
        limit = next(firsts, size)  # damaged, or bytes of a shifted record
    for candidate in heads.others(own_start % 4, other_start, limit):
        if starts_record(view, candidate):
            found, _, _ = _try(view, heads, candidate)
            if found is not None and found.spans[-1][1] <= limit and believe(found):
                return min(candidate, nearest)
    return nearest


def _swallowed(view: memoryview, heads: _Heads, last: Found, known: Known, familiar: Known) -> int:
    """The file's end, or the record inside the last one, which reaches the end only because of a cut.

    It is known; or its header has a known key, it ends with the file, and the last one's padding is not zeros.
    """
    if known(last):
        return len(view)
    odd = any(view[last.spans[-1][1] : last.behind]) or last.behind > len(view)
    for candidate in heads.others(last.offset % 4, last.offset + 1, len(view)):
        found, _, _ = _try(view, heads, candidate)
        if found is not None and (
            known(found) or (odd and found.spans[-1][1] <= len(view) <= found.behind and familiar(found))
        ):
            return candidate
    return len(view)
