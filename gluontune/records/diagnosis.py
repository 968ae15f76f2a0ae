"""From what was found in a file to the list of what is wrong with it."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from gluontune.records.keys import decide_keys
from gluontune.records.layout import FIRST, HEAD, LAST, LENGTH_MASK, MAGIC, MIDDLE, WHOLE, padded

if TYPE_CHECKING:
    from gluontune.records.structure import Broken, Found
    from gluontune.records.verifier import Checked, Survey

__all__ = ["judge"]

_END_BITS = 14.0  # from which a record ends where it says, though no record follows


def judge(survey: Survey) -> None:
    """Decide which records are whole, and fill the report's counts and damages."""
    _match_checksums(survey)
    _check_end_of_checksums(survey)
    _decide(survey)
    survey.keys = decide_keys(survey)
    damages: dict[tuple[int | None, int], str] = {}
    positions = _Positions(survey)
    _list_records(survey, positions, damages)
    _list_index(survey, positions, damages)
    _finish(survey, positions, damages)


def _match_checksums(survey: Survey) -> None:
    """Give each record the checksum row that it satisfies: the one of its place, else one of its content."""
    rows = survey.rows
    by_offset = {offset: i for i, offset in enumerate(rows["offset"].tolist())}
    content = list(zip(rows["length"].tolist(), rows["crc"].tolist()))
    free: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    moved = []
    used = set()
    for checked in survey.checked:
        row = by_offset.get(checked.found.offset, -1)
        if row >= 0 and content[row] == (checked.length, checked.crc):
            checked.row = row
            used.add(row)
        else:
            moved.append(checked)
    for row, pair in enumerate(content):
        if row not in used and moved:
            free[pair].append(row)
    for checked in moved:
        rest = free.get((checked.length, checked.crc))
        if rest:
            checked.row = rest.popleft()
    if len(rows) and not any(checked.row >= 0 for checked in survey.checked):
        _judge_foreign_checksums(survey)


def _judge_foreign_checksums(survey: Survey) -> None:
    """Not one record fits: was the record file written anew by a program that knows no checksums?"""
    places = set(zip(survey.rows["offset"].tolist(), survey.rows["length"].tolist()))
    same = sum((c.found.offset, c.length) in places for c in survey.checked)
    few = min(len(survey.rows), len(survey.checked))
    foreign = few > 2 and same * 4 < few  # else the places are right, and it is the bytes that are wrong
    survey.report.problems.append(
        f"{survey.path}: no record fits the .crc file beside it, which seems to be of another file; "
        + ("not used" if foreign else "if so, delete it")
    )
    if foreign:
        survey.rows = survey.rows[:0]
        survey.all_rows = False


def _check_end_of_checksums(survey: Survey) -> None:
    """A ``.crc`` file that was cut between two rows shows only by records that lie behind its last one."""
    last = int(survey.rows["offset"].max()) if len(survey.rows) else -1
    matched = [c.found.offset for c in survey.checked if c.row >= 0]
    beyond = [c for c in survey.checked if c.row < 0 and c.found.offset > max([last, *matched])]
    # Or, where bytes were cut out before it, by a record whose id the index names and no row does.
    unnamed = {key for _, key, _ in survey.index.rows} - set(survey.rows["key"].tolist())
    named = [c for c in survey.checked if c.row < 0 and not c.found.doubtful and c.key in unnamed]
    if survey.all_rows and (beyond or named):
        survey.all_rows = False
        survey.report.problems.append(
            f"{survey.path}: the .crc file ends before the records do: it was cut, or records were appended"
        )


def _decide(survey: Survey) -> None:
    images = sum(checked.kind is not None for checked in survey.checked)
    of_images = images * 2 > len(survey.checked)
    satisfied = {checked.row for checked in survey.checked}
    offsets = {o for row, o in enumerate(survey.rows["offset"].tolist()) if row not in satisfied}
    offsets -= set(_moved_here(survey, offsets))
    # Where the next record starts is known from the index, from a sound row of the checksums, or from its own length.
    confirmed = {offset for _, _, offset in survey.index.rows} | set(survey.rows["offset"].tolist())
    confirmed |= {b.offset for b in survey.broken if _fits(survey, b)}
    breaks = {b.offset: b.until for b in survey.broken}
    sizes = _sizes(survey)
    for checked in survey.checked:
        found = checked.found
        found.doubtful &= (
            found.behind not in confirmed
            and found.behind - found.offset != sizes.get(checked.key)
            and _length_may_be_wrong(survey.view, found, breaks.get(found.behind))
        )
        checked.reason = _fault(survey, checked, of_images, offsets)
        checked.whole = not checked.reason
        if checked.whole and not checked.padding:
            meaning = "harmless" if checked.row >= 0 else "harmless, unless it is the length that is wrong"
            survey.report.problems.append(
                f"{survey.path}: padding of the record at byte {checked.found.offset:,} is not zero: {meaning}"
            )
        survey.report.unchecked += checked.whole and checked.row < 0


def _sizes(survey: Survey) -> dict[int, int]:
    """By id, the bytes from a record to the next as the index has them, wherever a cut has moved both."""
    offsets = sorted({offset for _, _, offset in survey.index.rows})
    behind = dict(zip(offsets, offsets[1:]))
    return {key: behind[offset] - offset for _, key, offset in survey.index.rows if offset in behind}


def _moved_here(survey: Survey, offsets: set[int]) -> list[int]:
    """Places of ``offsets``, where a row of the checksums had a record, to which a cut has moved another one.

    No row names the id that stands there, and the index has it elsewhere, as far away as the record before or behind.
    """
    known = set(survey.rows["key"].tolist())
    index = {key: offset for _, key, offset in survey.index.rows}
    by = {c.found.offset: index.get(c.key, c.found.offset) - c.found.offset for c in survey.checked}
    before = {c.found.behind: by[c.found.offset] for c in survey.checked}
    return [
        at
        for c in survey.checked
        if (at := c.found.offset) in offsets
        and c.row < 0
        and c.key not in known
        and by[at] != 0
        and by[at] in (before.get(at), by.get(c.found.behind))
    ]


def _fits(survey: Survey, broken: Broken) -> bool:
    """Is the break just a broken magic number? Then the lengths behind it lead, part by part, to the next record."""
    view, at, flags = survey.view, broken.offset, (WHOLE, FIRST)
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
    """Would one other byte in its last length make the record end where the next one starts?

    If not, it is the header of the next one that is destroyed. Nor is it the length where the next one starts off
    the multiple of four that it is due at: a wrong length moves nothing, so bytes are missing between the two. Nor
    where what is left at its end tells that it ends there.
    """
    start, stop = found.spans[-1]
    if until is None:
        return True
    if (until - found.offset) % 4:
        return False
    claimed = stop - start
    right = (until - start - n for n in range(4) if not any(view[until - n : until]))
    another = any(length >= 0 and _one_byte_apart(length, claimed) for length in right)
    return another and _end_bits(view, found) < _END_BITS


def _end_bits(view: memoryview, found: Found) -> float:
    """How much speaks for the end of a record where it says: zeros of its padding, what is left of a magic number.

    In bits, so many as it is unlikely that the middle of a longer record looks so: by how often its bytes are 0.
    """
    start, stop = found.spans[-1]
    if len(found.spans) == 1:
        start = min(start + 24, stop)  # behind the header of label and id, in which zeros are many
    tail, padding = bytes(view[max(start, stop - 256) : stop]), bytes(view[stop : found.behind])
    of_zero = -math.log2((tail.count(0) + 1) / (len(tail) + 16))
    left = sum(a == b for a, b in zip(view[found.behind : found.behind + 4], MAGIC))
    return 8 * left + of_zero * (2 * padding.count(0) - len(padding))


def _one_byte_apart(a: int, b: int) -> bool:
    return sum(byte != 0 for byte in (a ^ b).to_bytes(8, "little")) == 1


def _fault(survey: Survey, checked: Checked, of_images: bool, offsets: set[int]) -> str:
    if checked.row < 0 and checked.found.offset in offsets:
        return "its bytes differ from their checksum"
    if checked.row < 0 and survey.all_rows:
        return "a record that the checksums do not know"
    if of_images and checked.fault:
        return checked.fault
    if checked.row >= 0:
        return ""
    if checked.found.holds is not None:
        return f"another record starts inside it, at byte {checked.found.holds:,}"
    # No checksum: the end of an image tells whether the length is right.
    sure = of_images and checked.kind is not None
    if checked.found.doubtful and not sure:
        return "wrong length: no record follows where it ends"
    return ""


class _Positions:
    """Positions of records for the report, by offset."""

    def __init__(self, survey: Survey):
        self.of_offset: dict[int, int] = {}
        if survey.index.path is not None:
            for number, _, offset in survey.index.rows:
                self.of_offset.setdefault(offset, number)
        elif len(survey.rows):
            self.of_offset = {offset: i for i, offset in enumerate(survey.rows["offset"].tolist())}
        else:
            pieces = [c.found.offset for c in survey.checked] + [b.offset for b in survey.broken]
            self.of_offset = {offset: i for i, offset in enumerate(sorted(pieces))}

    def get(self, offset: int) -> int | None:
        return self.of_offset.get(offset)


def _list_records(survey: Survey, positions: _Positions, damages: dict[tuple[int | None, int], str]) -> None:
    """Records that were found damaged, rows of the checksums that nothing satisfies, and breaks."""
    present = {checked.row for checked in survey.checked if checked.row >= 0}
    expected = sorted((offset, row) for row, offset in enumerate(survey.rows["offset"].tolist()))
    starts = [offset for offset, _ in expected]
    explained: list[tuple[int, int]] = []  # spans of the file that a damage already speaks of
    reasons = {c.found.offset: c.reason for c in survey.checked if not c.whole}
    breaks = {b.offset: b.reason for b in survey.broken}
    for place, (offset, row) in enumerate(expected):
        if row in present:
            continue
        behind = starts[place + 1] if place + 1 < len(starts) else max(len(survey.view), offset + 1)
        explained.append((offset, behind))
        gone = "missing: the file is cut" if offset >= len(survey.view) else "no whole record lies there"
        damages[positions.get(offset), offset] = reasons.get(offset) or breaks.get(offset) or gone
    for offset, reason in [*reasons.items(), *_breaks(survey)]:
        known = (positions.get(offset), offset) in damages
        if not known and not _lies_in(explained, offset):
            damages[positions.get(offset), offset] = reason


def _breaks(survey: Survey) -> list[tuple[int, str]]:
    """Breaks that are no mere rest of a record whose own length is wrong."""
    damaged_ends = {c.found.behind for c in survey.checked if not c.whole}
    return [(b.offset, b.reason) for b in survey.broken if b.offset not in damaged_ends]


def _lies_in(spans: list[tuple[int, int]], offset: int) -> bool:
    at = bisect.bisect_right(spans, (offset, 1 << 63)) - 1
    return at >= 0 and spans[at][0] <= offset < spans[at][1]


def _list_index(survey: Survey, positions: _Positions, damages: dict[tuple[int | None, int], str]) -> None:
    """Rows of the index that lead to no record or to another one, and records without a row."""
    index = survey.index
    if index.path is None:
        return
    for number, reason in index.faults:
        damages[number, -1] = reason
    starts = {c.found.offset: c for c in survey.checked}
    true_keys = survey.keys.true
    seen: dict[Any, int] = {}
    for number, key, offset in index.rows:
        if key in seen:
            damages[number, offset] = f"index row {number}: the key {key} is used by row {seen[key]} already"
        seen.setdefault(key, number)
        if offset in starts:
            true = true_keys.get(offset)
            if true is not None and true != key:
                damages[number, offset] = f"index row {number}: key {key} points to the record of key {true}"
        elif (number, offset) not in damages:
            where = "beyond the end of the file" if offset >= len(survey.view) else "to where no record starts"
            damages[number, offset] = f"index row {number}: key {key} points {where}"
    keys = survey.rows["key"].tolist()
    for key, offset in zip(keys, survey.rows["offset"].tolist()):
        if key not in seen:
            damages.setdefault((positions.get(offset), offset), f"the index has no row for key {key}")


def _finish(survey: Survey, positions: _Positions, damages: dict[tuple[int | None, int], str]) -> None:
    from gluontune.records.verifier import Damage

    report = survey.report
    found = [Damage(i, max(offset, 0), reason) for (i, offset), reason in damages.items()]
    lacking = [(c.found.offset, c.incomplete) for c in survey.checked if c.whole and c.incomplete]
    report.incomplete = [Damage(positions.get(offset), offset, lacks) for offset, lacks in lacking]
    report.damaged = sorted(found, key=lambda d: (d.offset, -1 if d.index is None else d.index))
    if len(survey.rows) and survey.all_rows:
        report.records = len(survey.rows)
    elif survey.index.path is not None:
        missing = [d for d in report.damaged if d.index is None]
        report.records = max(len(survey.index.rows) + len(survey.index.faults), len(survey.rows)) + len(missing)
    else:
        report.records = sum(c.whole for c in survey.checked) + len(report.damaged)
    places = {d.index for d in report.damaged if d.index is not None}
    alone = sum(d.index is None for d in report.damaged)
    report.whole = max(0, report.records - len(places) - alone)
