"""The judgement of each record: whether it is whole, and its key.

A record is checked against the checksums, the index, its image and its surroundings. For its key every explanation of
ids and index is weighed, and the likeliest taken.

The id in a record's header, the row of the index and the row of the checksums each name a key. A checksum row is
proof. Between ids and index three explanations are weighed by the logarithm of their likelihood:

- *ids*: a packer set the id to the key, as gluontune, ``im2rec`` and most scripts do; contradicting index lines were
  damaged;
- *numbered*: the index was made afterwards and numbers the records 0, 1, … (MXNet's ``rec2idx``);
- *free*: the writer chose keys without relation to the ids.

An index line that contradicts an explanation must have been damaged: seldom, and rather by one byte than by more. The
order counts as well as the position: every writer orders its lines as the file, and where bytes were cut out, the lines
keep their order while their offsets lead elsewhere.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gluontune.records.layout import FIRST, HEAD, LAST, LENGTH_MASK, MAGIC, MIDDLE, WHOLE, padded
from gluontune.records.scan import Checked, Evidence
from gluontune.records.structure import Broken, Found

_END_BITS = 14.0  # from which a record's length is believed, though no record follows


def judge(evidence: Evidence) -> Evidence:
    """The evidence with each record's row of the checksums and the reason why it is damaged, if it is."""
    rows = _matching_rows(evidence)
    checked = tuple(Checked(*c[:8], row) for c, row in zip(evidence.checked, rows))
    return _decide(_without_cut_checksums(_without_foreign_checksums(replace(evidence, checked=checked))))


def _matching_rows(evidence: Evidence) -> list[int]:
    """For each record its checksum row: of its offset, else of its content; else -1."""
    rows = evidence.rows
    by_offset = {offset: i for i, offset in enumerate(rows["offset"].tolist())}
    content = list(zip(rows["length"].tolist(), rows["crc"].tolist()))
    found = [by_offset.get(checked.found.offset, -1) for checked in evidence.checked]
    of_place = [
        row if row >= 0 and content[row] == (c.length, c.crc) else -1 for row, c in zip(found, evidence.checked)
    ]
    used = set(of_place)
    if len(used) == len(rows) + (-1 in used):
        return of_place
    free: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    for row, pair in enumerate(content):
        if row not in used:
            free[pair].append(row)
    return [
        free[c.length, c.crc].popleft() if row < 0 and free.get((c.length, c.crc)) else row
        for row, c in zip(of_place, evidence.checked)
    ]


def _without_foreign_checksums(evidence: Evidence) -> Evidence:
    """Drops checksums that no record satisfies: another program has written the record file anew"""
    if not len(evidence.rows) or any(checked.row >= 0 for checked in evidence.checked):
        return evidence
    places = set(zip(evidence.rows["offset"].tolist(), evidence.rows["length"].tolist()))
    same = sum((c.found.offset, c.length) in places for c in evidence.checked)
    few = min(len(evidence.rows), len(evidence.checked))
    foreign = few > 2 and same * 4 < few  # else the offsets are right, and the bytes are wrong
    problem = f"{evidence.path}: no record fits the .crc file beside it, which seems to be of another file; " + (
        "not used" if foreign else "if so, delete it"
    )
    unused = replace(evidence.checksums, rows=evidence.rows[:0], complete=False)
    checksums = unused if foreign else evidence.checksums
    return replace(evidence, checksums=checksums, problems=(*evidence.problems, problem))


def _without_cut_checksums(evidence: Evidence) -> Evidence:
    """Marks a ``.crc`` file that was cut between two rows, which only records behind its last one reveal."""
    last = int(evidence.rows["offset"].max()) if len(evidence.rows) else -1
    matched = [c.found.offset for c in evidence.checked if c.row >= 0]
    end = max([last, *matched])
    beyond = any(c.row < 0 and c.found.offset > end for c in evidence.checked)
    # Or, if bytes were cut out before it, a record with an id that the index names and no row.
    unnamed = {key for _, key, _ in evidence.index.rows} - set(evidence.rows["key"].tolist())
    named = any(c.row < 0 and not c.found.doubtful and c.key in unnamed for c in evidence.checked)
    if not evidence.checksums.complete or not (beyond or named):
        return evidence
    problem = f"{evidence.path}: the .crc file ends before the records do: it was cut, or records were appended"
    incomplete = replace(evidence.checksums, complete=False)
    return replace(evidence, checksums=incomplete, problems=(*evidence.problems, problem))


def _decide(evidence: Evidence) -> Evidence:
    images = sum(checked.kind is not None for checked in evidence.checked)
    of_images = images * 2 > len(evidence.checked)
    satisfied = {checked.row for checked in evidence.checked}
    offsets = {o for row, o in enumerate(evidence.rows["offset"].tolist()) if row not in satisfied}
    offsets -= set(_moved_here(evidence, offsets))
    # The start of the next record is known from the index, a sound row of the checksums, or the record's length.
    confirmed = {offset for _, _, offset in evidence.index.rows} | set(evidence.rows["offset"].tolist())
    confirmed |= {b.offset for b in evidence.broken if _fits(evidence, b)}
    breaks = {b.offset: b.until for b in evidence.broken}
    sizes = _sizes(evidence)
    judged, problems = [], list(evidence.problems)
    for checked in evidence.checked:
        found = checked.found
        if found.doubtful and (
            found.behind in confirmed
            or found.behind - found.offset == sizes.get(checked.key)
            or not _length_may_be_wrong(evidence.view, found, breaks.get(found.behind))
        ):
            checked = checked._replace(found=found._replace(doubtful=False))
        checked = Checked(*checked[:9], _fault(evidence, checked, of_images, offsets))
        judged.append(checked)
        if checked.whole and not checked.padding:
            meaning = "harmless" if checked.row >= 0 else "harmless, unless it is the length that is wrong"
            problems.append(f"{evidence.path}: padding of the record at byte {found.offset:,} is not zero: {meaning}")
    return replace(evidence, checked=tuple(judged), problems=tuple(problems))


def _sizes(evidence: Evidence) -> dict[int, int]:
    """By id, the distance from a record to the next in the index, which a cut does not change."""
    offsets = sorted({offset for _, _, offset in evidence.index.rows})
    behind = dict(zip(offsets, offsets[1:]))
    return {key: behind[offset] - offset for _, key, offset in evidence.index.rows if offset in behind}


def _moved_here(evidence: Evidence, offsets: set[int]) -> list[int]:
    """Those of ``offsets`` (of checksum rows without a record) to which a cut has moved another record.

    No row names the id of that record, and the index has it elsewhere, as far away as the record before or behind.
    """
    known = set(evidence.rows["key"].tolist())
    index = {key: offset for _, key, offset in evidence.index.rows}
    by = {c.found.offset: index.get(c.key, c.found.offset) - c.found.offset for c in evidence.checked}
    before = {c.found.behind: by[c.found.offset] for c in evidence.checked}
    return [
        at
        for c in evidence.checked
        if (at := c.found.offset) in offsets
        and c.row < 0
        and c.key not in known
        and by[at] != 0
        and by[at] in (before.get(at), by.get(c.found.behind))
    ]


def _fits(evidence: Evidence, broken: Broken) -> bool:
    """Whether only a magic number is broken: the lengths behind it lead, part by part, to the next record."""
    view, at, flags = evidence.view, broken.offset, (WHOLE, FIRST)
    while at + 8 <= broken.until:
        magic, word = HEAD.unpack_from(view, at)
        flag, at = word >> 29, at + 8 + padded(word & LENGTH_MASK)
        if flag not in flags or (flags != (WHOLE, FIRST) and magic != 0xCED7230A):
            return False
        if flag in (WHOLE, LAST):
            return at == broken.until
        flags = (MIDDLE, LAST)
    return False


def _length_may_be_wrong(view: memoryview, found: Found, until: int | None) -> bool:
    """Whether one other byte in its last length would make the record end where the next one starts.

    If not, the header of the next one is destroyed. The length is right, too, if the next one is not at a multiple of
    four from it: a wrong length moves nothing, so bytes are missing between the two. So it is if the rest of its end
    proves that it ends there.
    """
    start, stop = found.spans[-1]
    if until is None:
        return True
    if (until - found.offset) % 4:
        return False
    claimed = stop - start
    right = (until - start - n for n in range(4) if not any(view[until - n : until]))
    changed = ((length ^ claimed).to_bytes(8, "little") for length in right if length >= 0)
    another = any(sum(byte != 0 for byte in number) == 1 for number in changed)
    return another and _end_bits(view, found) < _END_BITS


def _end_bits(view: memoryview, found: Found) -> float:
    """The evidence, in bits, for the end of a record at its length: zeros of its padding, rests of a magic number.

    The bits measure how unlikely these bytes are in the middle of a longer record, by its share of zeros.
    """
    start, stop = found.spans[-1]
    if len(found.spans) == 1:
        start = min(start + 24, stop)  # behind the header of label and id, in which zeros are many
    tail, padding = bytes(view[max(start, stop - 256) : stop]), bytes(view[stop : found.behind])
    of_zero = -math.log2((tail.count(0) + 1) / (len(tail) + 16))
    left = sum(a == b for a, b in zip(view[found.behind : found.behind + 4], MAGIC))
    return 8 * left + of_zero * (2 * padding.count(0) - len(padding))


def _fault(evidence: Evidence, checked: Checked, of_images: bool, offsets: set[int]) -> str:
    if checked.row < 0 and checked.found.offset in offsets:
        return "its bytes differ from their checksum"
    if checked.row < 0 and evidence.checksums.complete:
        return "a record that the checksums do not know"
    if of_images and checked.fault:
        return checked.fault
    if checked.row >= 0:
        return ""
    if checked.found.holds is not None:
        return f"another record starts inside it, at byte {checked.found.holds:,}"
    # No checksum: the end of an image proves the length.
    sure = of_images and checked.kind is not None
    if checked.found.doubtful and not sure:
        return "wrong length: no record follows where it ends"
    return ""


CERTAIN = 4.0  # log of the odds (55 : 1) from which an explanation counts as settled
_DAMAGED = 9.0  # the cost of an altered line: once in some thousand lines
_ONE_BYTE = 5.0  # of a line with one wrong byte
_CUT = 1.0  # of a key whose record may have been cut out
_NUMBERED = 3.0  # an index that numbers the records anew is rare, ...
_FREE = 4.0  # ... and so are keys without relation to the ids
_OWN_PRIOR = 4.0  # more with checksums beside it: gluontune writes ids that are keys


@dataclass(frozen=True)
class KeyScheme:
    """The decided keys.

    ``true`` has the key by a record's offset, for records whose key is not just the index's; ``odds`` the logarithm of
    the odds against the next best explanation; ``doubtful`` offsets of records that have another key by a nearly as
    likely one.
    """

    true: dict[int, int] = field(default_factory=dict)
    odds: float = math.inf
    doubtful: set[int] = field(default_factory=set)


def decide_keys(evidence: Evidence) -> KeyScheme:
    """The keys of the records, by ids, index and checksums."""
    keys = evidence.rows["key"].tolist()
    sure = {c.found.offset: keys[c.row] for c in evidence.checked if c.row >= 0}
    times = Counter(c.key for c in evidence.checked if c.whole)  # an id of two records proves nothing
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
    moved = int(offsets != sorted(offsets))  # altered lines, whatever the keys mean
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
    """Whether the texts of ``key`` and ``wanted`` differ in one byte

    >>> _one_byte(19, 11), _one_byte("1q", 11), _one_byte(1, 11)
    (True, True, False)
    """
    a, b = str(key), str(wanted)
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b)) == 1
