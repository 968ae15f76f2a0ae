"""Packing that is interrupted anywhere and taken up again: what is there is used, what is damaged is made anew."""

from __future__ import annotations

import json
import os

import pytest

from gluontune.core.errors import GluontuneError
from gluontune.records import blocks as blocks_room, pack, packer as packer_room
from gluontune.records.layout import MAGIC

SUFFIXES = (".rec", ".idx", ".crc", ".classes")
COUNT, BAD = 9, (3, 8)  # images, and those of them that are empty


@pytest.fixture
def src(tmp_path):
    """Two classes of files that are copied as they are; records of all paddings, one in two parts."""
    for k in range(COUNT):
        place = tmp_path / "src" / ("cat" if k < 5 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        body = b"" if k in BAD else b"%d" % k * (20 + k) + (MAGIC if k % 4 == 0 else b"")
        (place / f"{k}.jpg").write_bytes(body)
    return tmp_path / "src"


@pytest.fixture
def read(monkeypatch):
    """The images that are read, by name."""
    seen: list[str] = []
    original = blocks_room.make_block

    def spy(items, *more):
        seen.extend(item.path[-5:-4] for item in items)
        return original(items, *more)

    monkeypatch.setattr(blocks_room, "make_block", spy)
    return seen


def packed(src, out, **options):
    return pack(src, out, exact=True, shuffle=False, workers=1, **options)


def files(path):
    return {suffix: path.with_suffix(suffix).read_bytes() for suffix in SUFFIXES}


@pytest.fixture
def wanted(src, tmp_path):
    packed(src, tmp_path / "want.rec")
    return files(tmp_path / "want.rec")


def stop(src, out, monkeypatch, after, **options):
    """As Ctrl-C stops it, after so many images, one by one."""

    def progress(done, total):
        if done >= after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packer_room, "BLOCK_BYTES", 1)
        with pytest.raises(KeyboardInterrupt):
            packed(src, out, progress=progress, **options)


@pytest.mark.parametrize("after", range(COUNT + 1))
def test_what_was_packed_or_left_out_is_not_read_again(src, wanted, tmp_path, monkeypatch, read, after):
    out = tmp_path / "a.rec"
    stop(src, out, monkeypatch, after)
    assert not out.exists()
    read.clear()
    told = []
    report = packed(src, out, resume=True, progress=lambda done, total: told.append((done, total)))
    assert read == [str(k) for k in range(after, COUNT)]
    assert (report.packed, report.resumed) == (7, sum(k not in BAD for k in range(after)))
    assert [(s.position, s.path[-5:], s.reason) for s in report.skipped] == [(k, f"{k}.jpg", "empty file") for k in BAD]
    assert told[0] == (after, COUNT) and told[-1] == (COUNT, COUNT)
    assert files(out) == wanted
    assert report.bytes == len(wanted[".rec"]) and report.outputs == [str(out)]
    assert not list(tmp_path.glob("*.part"))


def test_shards_go_on_one_by_one(src, tmp_path, monkeypatch, read):
    packed(src, tmp_path / "want.rec", shards=3)
    stop(src, tmp_path / "a.rec", monkeypatch, 5, shards=3)
    read.clear()
    report = packed(src, tmp_path / "a.rec", shards=3, resume=True)
    assert read == ["5", "6", "7", "8"]
    assert (report.packed, report.resumed, [s.position for s in report.skipped]) == (7, 4, list(BAD))
    for k in range(3):
        name = f"-{k:05d}-of-00003.rec"
        assert files(tmp_path / f"a{name}") == files(tmp_path / f"want{name}")


def part(out, kind):
    return out.with_suffix(f".{kind}.part")


def plan_of(wanted, lines=BAD):
    job = json.dumps({"job": wanted[".crc"][16:24].hex()})
    return "".join(f"{line}\n" for line in [job, *(json.dumps([k, f"{k}.jpg", "empty file"]) for k in lines)])


@pytest.mark.parametrize("renamed", ["records", "records and checksums"])
def test_a_kill_while_the_files_are_put_in_place_costs_nothing(src, wanted, tmp_path, read, renamed):
    out = tmp_path / "a.rec"
    out.write_bytes(wanted[".rec"])
    crc = part(out, "crc") if renamed == "records" else out.with_suffix(".crc")
    crc.write_bytes(wanted[".crc"])
    part(out, "plan").write_text(plan_of(wanted))
    report = packed(src, out, resume=True)
    assert read == [] and (report.packed, report.resumed, len(report.skipped)) == (7, 7, 2)
    assert files(out) == wanted and not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("records", "crc", "lines"),
    [
        (slice(0, -8), "crc.part", BAD),  # an older file, cut
        (slice(0, -8), "crc", BAD),
        (slice(0, None), "crc.part", BAD[:1]),  # the last image is neither packed nor left out
        (slice(0, None), None, BAD),
    ],
)
def test_what_bears_the_final_name_may_be_an_older_file(src, wanted, tmp_path, read, records, crc, lines):
    out = tmp_path / "a.rec"
    out.write_bytes(wanted[".rec"][records])
    if crc:
        out.with_suffix(f".{crc}").write_bytes(wanted[".crc"])
    part(out, "plan").write_text(plan_of(wanted, lines))
    report = packed(src, out, resume=True)
    assert len(read) == COUNT and report.resumed == 0 and [s.position for s in report.skipped] == list(BAD)
    assert files(out) == wanted


def test_older_checksums_do_not_vouch_for_parts(src, wanted, tmp_path, read):
    """A job is packed again; what lies at the final place is the last one's."""
    out = tmp_path / "a.rec"
    part(out, "rec").write_bytes(wanted[".rec"])
    out.with_suffix(".crc").write_bytes(wanted[".crc"])
    part(out, "plan").write_text(plan_of(wanted, ()))
    assert packed(src, out, resume=True).resumed == 0
    assert files(out) == wanted


def edit(path, change):
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def offsets_of(wanted):
    return [int(line.split()[1]) for line in wanted[".idx"].decode().splitlines()]


HARMS = {  # after seven images, six of which are records: how many of those remain
    "last padding": ("rec", lambda data, at: data.__delitem__(slice(-1, None)), 5),
    "second payload": ("rec", lambda data, at: data.__setitem__(at[1] + 40, 0), 1),
    "third header": ("rec", lambda data, at: data.__setitem__(at[2], 0), 2),
    "third length": ("rec", lambda data, at: data.__setitem__(at[2] + 4, data[at[2] + 4] + 1), 2),
    "all records": ("rec", lambda data, at: data.clear(), 0),
    "half a row": ("crc", lambda data, at: data.__delitem__(slice(-1, None)), 5),
    "a row": ("crc", lambda data, at: data.__delitem__(slice(32 + 28 * 2, 32 + 28 * 3)), 2),
    "a row's check word": ("crc", lambda data, at: data.__setitem__(32 + 28 * 4 + 25, data[32 + 28 * 4 + 25] ^ 1), 4),
    "another job's rows": ("crc", lambda data, at: data.__setitem__(16, data[16] ^ 1), 0),
    "all but its name": ("crc", lambda data, at: data.__delitem__(slice(16, None)), 0),
    "half of its name": ("crc", lambda data, at: data.__delitem__(slice(9, None)), 0),
    "rows": ("crc", lambda data, at: data.clear(), 0),
    "what was left out": ("plan", lambda data, at: data.__delitem__(slice(data.index(b"\n") + 1, None)), 3),
    "half a line": ("plan", lambda data, at: data.__delitem__(slice(-1, None)), 3),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_a_crash_left_counts_as_far_as_all_agree(src, wanted, tmp_path, monkeypatch, read, harm):
    out = tmp_path / "a.rec"
    stop(src, out, monkeypatch, 7)
    kind, change, kept = HARMS[harm]
    edit(part(out, kind), lambda data: change(data, offsets_of(wanted)))
    read.clear()
    report = packed(src, out, resume=True)
    assert report.resumed == kept
    position = [k for k in range(COUNT) if k not in BAD][kept] if kept else 0
    assert read[0] == str(3 if kept == 3 and kind == "plan" else position)
    assert [s.position for s in report.skipped] == list(BAD)
    assert files(out) == wanted and not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b"no json\n", b'{"job": 5}\n', b"\n"])
def test_a_plan_of_another_job_is_named(src, wanted, tmp_path, line):
    out = tmp_path / "a.rec"
    part(out, "plan").write_bytes(line)
    with pytest.raises(GluontuneError, match=r"a\.plan\.part: the interrupted job had other images"):
        packed(src, out, resume=True)
    packed(src, out)  # without resume it begins anew
    assert files(out) == wanted


def test_a_finished_job_is_packed_again_only_where_it_is_not_whole(src, wanted, tmp_path, read):
    out = tmp_path / "a.rec"
    packed(src, out)
    read.clear()
    report = packed(src, out, resume=True)
    assert read == [] and (report.packed, report.resumed, report.converted) == (7, 7, 0)
    assert [(s.position, s.path[-5:], s.reason) for s in report.skipped] == [
        (k, f"{k}.jpg", "left out by the earlier run") for k in BAD
    ]
    with pytest.raises(
        GluontuneError, match=r"3\.jpg: left out by the earlier run; an earlier run left it out, so pack"
    ):
        packed(src, out, resume=True, strict=True)
    assert files(out) == wanted
    last = offsets_of(wanted)[-1]
    for suffix, change in (
        (".rec", lambda data: data.__setitem__(last + 40, 0)),
        (".rec", lambda data: data.__delitem__(slice(last + 12, None))),
        (".crc", lambda data: data.__setitem__(16, data[16] ^ 1)),
        (".crc", None),
        (".rec", None),
    ):
        read.clear()
        edit(out.with_suffix(suffix), change) if change else out.with_suffix(suffix).unlink()
        assert packed(src, out, resume=True).resumed == 0 and len(read) == COUNT
        assert files(out) == wanted


def test_records_are_on_the_disk_before_they_bear_their_name(src, tmp_path, monkeypatch):
    events = []
    replace = os.replace
    monkeypatch.setattr("os.fsync", lambda handle: events.append(os.readlink(f"/proc/self/fd/{handle}")))
    monkeypatch.setattr("os.replace", lambda old, new: (events.append(f"to {new}"), replace(old, new)))
    out = tmp_path / "a.rec"
    packed(src, out)
    done = events.index(f"to {out}")
    assert {str(part(out, "rec")), str(part(out, "crc"))} <= set(events[:done])


def test_what_an_earlier_run_had_begun_is_removed(src, wanted, tmp_path):
    out = tmp_path / "a.rec"
    left = [tmp_path / f".a{suffix}.x1.part" for suffix in (".idx", ".classes")]
    others = [tmp_path / ".b.idx.x1.part", tmp_path / ".a.idx.x1"]
    for path in left + others:
        path.write_text("")
    packed(src, out)
    assert not any(path.exists() for path in left) and all(path.exists() for path in others)
    assert files(out) == wanted


@pytest.mark.parametrize("bad", range(6))
def test_strict_keeps_all_before_the_first_damaged_one(tmp_path, bad):
    for k in range(6):
        place = tmp_path / "src" / "cat"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{k}.jpg").write_bytes(b"" if k == bad else b"image %d" % k)
    out = tmp_path / "a.rec"
    with pytest.raises(GluontuneError, match=f"{bad}.jpg: empty file; mend it and go on with --resume"):
        packed(tmp_path / "src", out, strict=True)
    (tmp_path / "src" / "cat" / f"{bad}.jpg").write_bytes(b"mended")
    report = packed(tmp_path / "src", out, strict=True, resume=True)
    assert (report.packed, report.resumed, report.skipped) == (6, bad, [])
