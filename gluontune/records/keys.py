"""Which key each record had, decided by evidence: every explanation of ids and index is weighed, the likeliest taken.

The id in a record's header, the row of the index and the row of the checksums each name a key. A checksum row is
proof. Between ids and index three explanations are weighed by the logarithm of their likelihood:

- *ids*: a packer set the id to the key, as gluontune, ``im2rec`` and most scripts do; index lines that say otherwise
  were damaged;
- *numbered*: the index was made afterwards and numbers the records 0, 1, … (MXNet's ``rec2idx``);
- *free*: the writer chose keys that have nothing to do with the ids.

An index line that disagrees with an explanation must have been damaged: seldom, and rather by one byte than by more.
The order counts as well as the place: every writer puts its lines in the order of the file, and where bytes were cut
out, the lines keep their order while their offsets lead elsewhere.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gluontune.records.scan import Evidence

__all__ = ["KeyScheme", "decide_keys"]

CERTAIN = 4.0  # log of the odds (55 : 1) from which an explanation counts as settled
_DAMAGED = 9.0  # what a line that was altered costs: once in some thousand lines
_ONE_BYTE = 5.0  # one that is a single byte away from what it should be
_CUT = 1.0  # a key whose record may have been cut out
_NUMBERED = 3.0  # a file whose index numbers the records anew is seldom beforehand, ...
_FREE = 4.0  # ... and so is one whose keys have nothing to do with the ids
_OWN_PRIOR = 4.0  # more, where checksums lie beside it: gluontune writes ids that are keys


@dataclass(frozen=True)
class KeyScheme:
    """What was decided.

    Args:
        true: key by the record's offset, for those whose key is not just what the index says.
        odds: log of the odds of the chosen explanation against the next best.
        doubtful: offsets of records whose key another explanation, nearly as likely, would give otherwise.
    """

    true: dict[int, int] = field(default_factory=dict)
    odds: float = math.inf
    doubtful: set[int] = field(default_factory=set)


def decide_keys(evidence: Evidence) -> KeyScheme:
    """Weigh what ids, index and checksums say."""
    keys = evidence.rows["key"].tolist()
    sure = {c.found.offset: keys[c.row] for c in evidence.checked if c.row >= 0}
    times = Counter(c.key for c in evidence.checked if c.whole)  # an id that two records carry says nothing
    ids = {c.found.offset: c.key for c in evidence.checked if c.whole and c.key >= 0 and times[c.key] == 1}
    proven = [ids[offset] == key for offset, key in sure.items() if offset in ids]
    if proven:
        return KeyScheme({**ids, **sure} if all(proven) else sure)
    by_ids, otherwise = _weigh(evidence, list(ids.items()))
    odds, doubtful = abs(by_ids - otherwise), set()
    if odds < CERTAIN:
        listed = {offset: key for _, key, offset in evidence.index.rows}
        doubtful = {o for o, key in ids.items() if o not in sure and listed.get(o, key) != key}
    return KeyScheme({**ids, **sure} if by_ids > otherwise else sure, odds, doubtful)


def _weigh(evidence: Evidence, ids: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Log likelihoods: that ids are keys, and the better of the other two."""
    lines = evidence.index.keys
    if not ids or not lines:
        return 0.0, -math.inf
    place = {key: n for n, (_, key) in enumerate(sorted(ids))}
    named = [place[key] for key in lines if key in place]
    gone = max(0, len(lines) - len(ids))
    strangers = [(n, key) for n, key in enumerate(lines) if key not in place]
    free_ids = sorted(set(place) - set(lines))
    near = sum(any(_one_byte(key, own) for own in free_ids[:64]) for _, key in strangers[:64])
    missing = min(gone, len(strangers) - near)
    offsets = [offset for _, _, offset in evidence.index.rows]
    moved = int(offsets != sorted(offsets))  # lines were altered, whatever the keys mean
    altered = len(strangers) - near - missing + len(named) - _longest_rise(named)
    by_ids = -near * _ONE_BYTE - missing * _CUT - max(altered, moved) * _DAMAGED
    others = [(n, key) for n, key in enumerate(lines) if key != n]
    near = sum(_one_byte(key, n) for n, key in others)
    numbered = -_NUMBERED - near * _ONE_BYTE - max(len(others) - near, moved) * _DAMAGED
    twice = len(lines) - len(set(map(str, lines)))
    free = -_FREE - max(twice, moved) * _DAMAGED - (len(lines) - twice) * math.log(4 * len(lines) + 8)
    own = _OWN_PRIOR if evidence.checksums.exist else 0.0
    return by_ids, max(numbered, free) - own


def _longest_rise(places: Sequence[int]) -> int:
    """Length of the longest rising subsequence.

    >>> _longest_rise([3, 0, 1, 9, 2])
    3
    """
    ends: list[int] = []
    for place in places:
        at = bisect.bisect_left(ends, place)
        ends[at : at + 1] = [place]
    return len(ends)


def _one_byte(key: Any, wanted: int) -> bool:
    """Is the text of ``key`` that of ``wanted`` with one byte altered?

    >>> _one_byte(19, 11), _one_byte("1q", 11), _one_byte(1, 11)
    (True, True, False)
    """
    a, b = str(key), str(wanted)
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b)) == 1
