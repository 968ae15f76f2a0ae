"""Verify and repair: each kind of damage is named, nothing whole is lost, and trials by the hundred."""

from __future__ import annotations

import json
import secrets

import cv2
import numpy as np
import pytest
import record_fuzz
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from record_damages import DamageTrial
from record_fuzz import concurrent_reads, damage_trials

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.records import DamagedRecordError, RecordReader, RecordWriter, repair, verify
from gluontune.records.layout import MAGIC


@pytest.fixture
def file(tmp_path):
    """Ten records of 100 bytes with keys 10 to 19; each takes 24 + 100 + 8 = 132 bytes."""
    path = tmp_path / "a.rec"
    with RecordWriter(path) as writer:
        for i in range(10):
            writer.write(bytes([65 + i]) * 100, i, key=10 + i)
    return path


def harm(path, at, new):
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    path.write_bytes(data)


def without(path, *suffixes):
    for suffix in suffixes:
        path.with_suffix(suffix).unlink()


def faults(path, **options):
    report = verify(path, **options)
    return report, [(d.index, d.offset) for d in report.damaged]


def kept(path, out):
    repair(path, out)
    assert verify(out).ok
    with RecordReader(out, check=True) as reader:
        return [int(k) for k in reader.keys if bytes(reader.read_key(k))[24:] == bytes([55 + int(k)]) * 100]


ALL = list(range(10, 20))


def test_a_sound_file_has_no_fault(file):
    report = verify(file)
    assert report.ok and (report.records, report.whole, report.unchecked) == (10, 10, 0)
    without(file, ".crc", ".idx")
    report = verify(file)
    assert report.ok and (report.records, report.whole, report.unchecked) == (10, 10, 10)


@pytest.mark.parametrize("sides", [(), (".idx",), (".crc",), (".crc", ".idx")])
@pytest.mark.parametrize(
    ("at", "new", "reason"),
    [
        (3 * 132, b"\0", "broken magic"),
        (3 * 132 + 4, b"\xff\xff\xff\x1f", "more than there are"),
        (3 * 132 + 4, b"\x00\x01\0\0", "wrong length|another record starts inside"),
        (3 * 132 + 7, b"\x60", "flag 3 does not fit"),
    ],
)
def test_a_broken_header_is_named_and_costs_one_record_at_most(file, tmp_path, sides, at, new, reason):
    without(file, *sides)
    harm(file, at, new)
    report, where = faults(file)
    assert where == [(3, 396)] and (report.records, report.whole) == (10, 9)
    assert any(part in report.damaged[0].reason for part in reason.split("|"))
    # With its checksum the record itself is proven whole, and brought back.
    assert kept(file, tmp_path / "b.rec") == (ALL if ".crc" not in sides else [k for k in ALL if k != 13])


def test_truncation(file, tmp_path):
    file.write_bytes(file.read_bytes()[: 7 * 132 + 50])
    report, where = faults(file)
    assert where == [(7, 924), (8, 1056), (9, 1188)] and report.whole == 7
    assert "cut" in report.damaged[-1].reason
    assert kept(file, tmp_path / "b.rec") == ALL[:7]
    without(file, ".crc")
    assert faults(file)[1] == where
    without(file, ".idx")
    assert faults(file)[1] == where[:1]


def test_damage_inside_a_payload_shows_by_its_checksum(file, tmp_path):
    harm(file, 5 * 132 + 60, b"?")
    report, where = faults(file)
    assert where == [(5, 660)] and "checksum" in report.damaged[0].reason
    assert kept(file, tmp_path / "b.rec") == [k for k in ALL if k != 15]


@pytest.mark.parametrize("crc", [True, False])
def test_index_rows_that_point_elsewhere(file, tmp_path, crc):
    index = file.with_suffix(".idx")
    rows = index.read_text().splitlines()
    if not crc:
        without(file, ".crc")
    rows[2], rows[6], rows[8] = "12\t792", "16\t264", "18\t500"
    index.write_text("\n".join(rows) + "\n")
    report, where = faults(file)
    assert where == [(6, 264), (8, 500), (2, 792)]
    reasons = " ".join(d.reason for d in report.damaged)
    assert "key 12 points to the record of key 16" in reasons and "to where no record starts" in reasons
    assert report.whole == 7
    assert kept(file, tmp_path / "b.rec") == ALL


def test_broken_index_lines_and_missing_rows(file):
    index = file.with_suffix(".idx")
    rows = index.read_text().splitlines()
    index.write_text("\n".join([*rows[:4], "oops", *rows[5:9]]) + "\n")
    report = verify(file)
    reasons = [d.reason for d in report.damaged]
    assert any("index line 5" in r for r in reasons)
    assert sum("no row for key" in r for r in reasons) == 2


def test_an_index_of_other_numbers_is_no_fault(file):
    """Tools that index an existing file number its records from 0, whatever ids their headers carry."""
    without(file, ".crc")
    file.with_suffix(".idx").write_text("".join(f"{i}\t{132 * i}\n" for i in range(10)))
    assert verify(file).ok
    file.with_suffix(".idx").write_text("".join(f"{10 + i}\t{132 * i}\n" for i in range(0, 10, 2)))
    assert verify(file).ok  # and one may list some records only


def test_a_piece_cut_out_costs_what_it_touched_alone(file, tmp_path):
    for start, size in ((300, 100), (301, 7), (130, 397), (132, 264)):
        whole = file.read_bytes()
        file.write_bytes(whole[:start] + whole[start + size :])
        touched = {10 + n for n in range(10) if n * 132 < start + size and start < n * 132 + 132}
        assert kept(file, tmp_path / "b.rec") == [k for k in ALL if k not in touched]
        assert {d.index for d in verify(file).damaged} >= {k - 10 for k in touched}
        file.write_bytes(whole)


def test_damaged_or_foreign_checksums_are_told_and_not_believed(file, tmp_path):
    crc = file.with_suffix(".crc")
    good = crc.read_bytes()
    for harmed, unchecked in ((b"\xff", 0), (b"\xff\xff", 1)):  # one byte is put right by the row's check word
        harm(crc, 32 + 28 * 4 + 12, harmed)
        report = verify(file)
        assert not report.ok and report.damaged == [] and report.unchecked == unchecked
        assert "1 damaged rows" in report.problems[0] and ("put right" in report.problems[0]) != unchecked
    assert kept(file, tmp_path / "b.rec") == ALL
    for cut in (32 + 28 * 6, 32 + 28 * 6 + 5, 32, 9, 0):
        crc.write_bytes(good[:cut])
        report = verify(file)
        assert not report.ok and report.damaged == [] and report.whole == 10 and report.unchecked >= 4
        assert kept(file, tmp_path / "b.rec") == ALL
    with RecordWriter(tmp_path / "other.rec") as writer:
        for _ in range(10):
            writer.write(b"something else", 0)
    crc.write_bytes((tmp_path / "other.crc").read_bytes())
    report = verify(file)
    assert report.damaged == [] and "another file; not used" in report.problems[0]


def test_padding_that_is_not_zero_harms_nothing(tmp_path):
    with RecordWriter(tmp_path / "a.rec") as writer:
        writer.write(b"abc", 0)
    harm(tmp_path / "a.rec", 8 + 24 + 3, b"!")
    report = verify(tmp_path / "a.rec")
    assert not report.ok and report.damaged == [] and report.whole == 1 and "padding" in report.problems[0]


def test_undecodable_images_are_found_without_checksums(tmp_path):
    path = tmp_path / "a.rec"
    jpg = cv2.imencode(".jpg", np.arange(3072, dtype=np.uint8).reshape(32, 32, 3))[1].tobytes()
    broken = bytearray(jpg)
    at = broken.find(b"\xff\xc4")  # a Huffman table that no decoder takes
    broken[at + 5 : at + 21] = b"\xff" * 16
    with RecordWriter(path, checksums=False) as writer:
        for payload in (jpg, jpg[:-10], jpg, b"no image", bytes(broken), jpg, jpg, jpg):
            writer.write(payload, 0)
    report = verify(path)
    assert [d.index for d in report.damaged] == [1, 3, 4] and report.whole == 5
    assert [d.index for d in verify(path, decode=False).damaged] == [1, 3]
    assert repair(path, tmp_path / "b.rec").kept == 5


def test_an_empty_file_and_a_file_of_rubbish(tmp_path):
    path = tmp_path / "a.rec"
    path.write_bytes(b"")
    with pytest.raises(GluontuneError, match="the file is empty"):
        verify(path)
    path.write_bytes(bytes(1000))
    report = verify(path)
    assert not report.ok and report.whole == 0
    with pytest.raises(GluontuneError, match="not one record is whole"):
        repair(path, tmp_path / "b.rec")
    with pytest.raises(UsageError, match="another file"):
        repair(path, path)
    with pytest.raises(GluontuneError, match="no such file"):
        verify(tmp_path / "c.rec")
    assert json.dumps(report.to_dict())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    payloads=st.lists(st.lists(st.one_of(st.just(MAGIC), st.binary(max_size=9)), max_size=5).map(b"".join), min_size=2),
    data=st.data(),
)
def test_any_one_changed_byte_is_seen_and_costs_one_record_at_most(tmp_path, payloads, data):
    path = tmp_path / "p.rec"
    with RecordWriter(path) as writer:
        for i, payload in enumerate(payloads):
            writer.write(payload, i)
    assume(verify(path).ok)  # a payload that begins as an image does, and is none, is damaged from the start
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != whole[at]))
    harm(path, at, bytes([byte]))
    report = verify(path)
    assert not report.ok and len(report.damaged) <= 1 and report.whole >= len(payloads) - 1
    damaged = {d.index for d in report.damaged}
    with RecordReader(path) as reader:
        for i in set(range(len(payloads))) - damaged:
            assert bytes(reader[i])[24:] == payloads[i]
    assert repair(path, tmp_path / "q.rec").kept >= len(payloads) - 1


def test_random_damages_that_nobody_has_seen(capfd):
    """New ones in each run. A loss prints the command that runs its trial alone."""
    seed = secrets.randbelow(1 << 31)
    result = damage_trials(300, seed)
    del result["uncertain_keys"]
    none = dict.fromkeys(("silently_wrong", "lost_by_repair", "missed", "hangs", "crashes"), 0)
    assert result == {"trials": 300, **none}, f"seed {seed}: {capfd.readouterr().err}"


DAMAGES_THAT_LOST = [
    [12345, 8425], [12345, 1798], [777, 8147], [2, 1245], [4242, 9509], [20261121, 5526],
    [900001, 1446], [900001, 3154], [900002, 1447], [900003, 6320], [900004, 267], [900004, 2757],
    [910002, 8272], [244963086, 3276], [244963086, 3570], [20348232, 10251], [2199314, 17660],
    [765384309, 5806], [1777221, 353], [1842313789, 4220], [1842313789, 9105], [728938788, 656],
    [2101605856, 7963],
]  # fmt: skip


@pytest.mark.parametrize("seed", DAMAGES_THAT_LOST)
def test_repair_loses_nothing_beside_a_cut_or_to_bytes_that_look_like_a_record(tmp_path, seed):
    trial = DamageTrial(tmp_path, np.random.default_rng(seed))
    assert trial.run() == {"silently_wrong": 0, "lost_by_repair": 0, "missed": 0}


def test_the_last_record_is_kept_where_a_cut_has_moved_it_to_anothers_place(tmp_path):
    """Of five the third is gone and the second's end with it; the fifth lies where the third did, and has no row."""
    path, rng = tmp_path / "a.rec", np.random.default_rng(5)
    payloads = {key: rng.bytes(size) for key, size in zip((6, 2, 3, 8, 4), (30, 300, 90, 130, 70))}
    with RecordWriter(path) as writer:
        for key, payload in payloads.items():
            writer.write(payload, float(key), key)
    with RecordReader(path) as reader:
        offsets = [int(o) for o in reader._offsets]
    data, removed = path.read_bytes(), offsets[4] - offsets[2]
    path.write_bytes(data[: offsets[3] - removed] + data[offsets[3] :])
    side = path.with_suffix(".crc")
    side.write_bytes(side.read_bytes()[:-11])
    repair(path, tmp_path / "b.rec", decode=False)
    with RecordReader(tmp_path / "b.rec") as reader:
        kept = {int(key): bytes(record)[24:] for key, record in zip(reader.keys, reader)}
    assert kept == {key: payloads[key] for key in (6, 8, 4)}


def test_a_bit_that_was_flipped_twice_is_no_damage(tmp_path):
    trial = DamageTrial(tmp_path, np.random.default_rng([65372952, 943]))
    assert all(map(trial._is_whole, trial.records)) and not any(trial.run().values())


def test_the_trials_notice_a_verifier_and_a_reader_that_do_not_look(monkeypatch):
    monkeypatch.setattr(RecordReader, "_compare", lambda *_: None)
    assert damage_trials(40, seed=1)["silently_wrong"] > 0
    monkeypatch.undo()
    monkeypatch.setattr("gluontune.records.judging._matching_rows", lambda evidence: [
        min(i, len(evidence.rows) - 1) for i in range(len(evidence.checked))
    ])  # fmt: skip
    result = damage_trials(40, seed=1)
    assert result["silently_wrong"] > 0 and result["missed"] > 0
    monkeypatch.undo()
    monkeypatch.setattr("gluontune.records.scan._Known.content", lambda self, found: 1 / 0)
    assert damage_trials(40, seed=1)["crashes"] > 0


def test_concurrent_reads_are_right_and_the_count_notices_wrong_ones(monkeypatch):
    assert concurrent_reads(20000) == {"reads": 20004, "wrong": 0}
    original = RecordReader.unpack
    monkeypatch.setattr(RecordReader, "unpack", lambda self, i: original(self, i - i % 100 // 99))
    assert concurrent_reads(4000)["wrong"] > 0


def test_a_file_that_was_cut_to_nothing_must_be_refused_as_empty(monkeypatch):
    result = damage_trials(1, 1109865727, first=870)
    assert result["trials"] == 1 and not any(v for k, v in result.items() if k != "trials")
    monkeypatch.setattr("record_damages.GluontuneError", KeyError)  # as if it were not said
    assert damage_trials(1, 1109865727, first=870)["crashes"] == 1


def test_the_fuzz_command_prints_its_counts(capsys, monkeypatch):
    assert record_fuzz.main(["--damages", "1"]) == 0
    first = json.loads(capsys.readouterr().out)["seed"]
    assert record_fuzz.main(["--damages", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] != first
    assert record_fuzz.main(["--damages", "5", "--reads", "100"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["damages"]["trials"] == 5 and printed["reads"]["wrong"] == 0
    monkeypatch.setattr(RecordReader, "_compare", lambda *_: (_ for _ in ()).throw(DamagedRecordError("x")))
    monkeypatch.setattr("record_damages.repair", lambda *a, **k: 1 / 0)
    assert record_fuzz.main(["--damages", "5", "--seed", "3"]) == 1
    assert "crashes 1: python tests/trials/record_fuzz.py --damages 1 --seed 3 --first 4" in capsys.readouterr().err


def test_a_key_that_cannot_be_proven_is_called_uncertain(tmp_path):
    """Two explanations are about as likely: the index was numbered anew, or one of its two lines was altered."""
    path = tmp_path / "a.rec"
    with RecordWriter(path, checksums=False) as writer:
        writer.write(b"one", 0, key=2)
        writer.write(b"two", 0, key=1)
    path.with_suffix(".idx").write_text("0\t0\n1\t36\n")
    found = repair(path, tmp_path / "b.rec")
    assert found.kept == 2 and found.lost == 0 and found.uncertain
    with RecordReader(tmp_path / "b.rec") as reader:
        assert sorted(bytes(reader.payload(i)) for i in range(2)) == [b"one", b"two"]
    path.with_suffix(".idx").write_text("2\t0\n1\t36\n")
    assert repair(path, tmp_path / "b.rec").uncertain == []


def test_a_row_that_points_into_a_record_does_not_end_the_one_before(tmp_path):
    path = tmp_path / "a.rec"
    payload = b"abcd" * 3 + (0xCED7230A).to_bytes(4, "little") + b"efgh"
    with RecordWriter(path, checksums=False) as writer:
        writer.write(payload, 0)
        writer.write(b"two", 0)
    inside = 8 + 24 + 12
    path.with_suffix(".idx").write_text(f"0\t0\n1\t{inside}\n")
    with RecordReader(path) as reader:
        assert bytes(reader.payload(0)) == payload
