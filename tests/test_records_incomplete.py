"""JPEG files whose data end early, though the end marker is there: decoders go on with grey, and nobody was told."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest

from gluontune.cli.main import main
from gluontune.codec import native
from gluontune.codec.recode import incomplete
from gluontune.errors import GluontuneError
from gluontune.records import pack, repair, verify

pytestmark = pytest.mark.skipif(not native.compilers(), reason="wants a C compiler: OpenCV tells nobody")
NAMES = {"cut.jpg", "progressive.jpg", "small.jpg", "broken.jpg"}


def photograph(height: int, width: int, *options: int) -> bytes:
    noise = np.random.default_rng(height).integers(0, 256, (9, 12, 3), np.uint8)
    image = cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90, *options])[1].tobytes()


def cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3] + b"\xff\xd9"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("images") / "a"
    place.mkdir()
    whole = photograph(64, 80)
    files = {"whole.jpg": whole, "more.jpg": photograph(70, 90), "behind.jpg": whole + b"anything\xff\xd9"}
    files["extra.jpg"] = whole[:-2] + b"\x12\x34" + whole[-2:]  # left over before its end: sloppy, and whole
    files["cut.jpg"] = cut(photograph(66, 80))
    files["progressive.jpg"] = cut(photograph(67, 80, cv2.IMWRITE_JPEG_PROGRESSIVE, 1))
    files["small.jpg"] = cut(photograph(14, 30))  # libjpeg's to decode
    broken = bytearray(photograph(68, 80))
    broken[-400:-2] = b"\xfe" * 398
    files["broken.jpg"] = bytes(broken)
    for name, data in files.items():
        (place / name).write_bytes(data)
    cv2.imwrite(str(place / "b.png"), np.zeros((20, 20, 3), np.uint8))
    return place.parent


def names(found) -> set[str]:
    return {one.path.rsplit("/", 1)[1] for one in found}


def test_it_is_said_of_the_data_alone(folder):
    said = {path.name: incomplete(path.read_bytes()) for path in (folder / "a").iterdir()}
    assert {name for name, why in said.items() if why} == NAMES and said["b.png"] is None
    assert said["whole.jpg"] == said["extra.jpg"] == "" and "premature end of data segment" in said["cut.jpg"]


@pytest.mark.parametrize("options", [{"check": True}, {"resize": 12}, {"quality": 50}, {"resize": 12, "format": "raw"}])
def test_pack_counts_them_and_packs_them(folder, tmp_path, options):
    report = pack(folder, tmp_path / "o.rec", **options)
    assert report.packed == 9 and not report.skipped and names(report.incomplete) == NAMES
    assert {one["path"].rsplit("/", 1)[1] for one in report.to_dict()["incomplete"]} == NAMES


@pytest.mark.parametrize("options", [{}, {"resize": 12}])
def test_strict_refuses_the_first_and_goes_on_without(folder, tmp_path, options):
    with pytest.raises(GluontuneError, match=r"incomplete image.*premature end.*leave out --strict|bad Huffman"):
        pack(folder, tmp_path / "o.rec", strict=True, **options)
    went_on = pack(folder, tmp_path / "o.rec", resume=True, **options)
    at_once = pack(folder, tmp_path / "p.rec", **options)
    assert went_on.packed == 9 and (tmp_path / "o.rec").read_bytes() == (tmp_path / "p.rec").read_bytes()
    assert at_once.packed == 9 and names(at_once.incomplete) == (NAMES if options else set())


def test_verify_tells_and_keeps_them(folder, tmp_path):
    pack(folder, tmp_path / "o.rec")
    report = verify(tmp_path / "o.rec")
    assert report.ok and report.whole == 9 and len(report.incomplete) == len(NAMES)
    assert not verify(tmp_path / "o.rec", decode=False).incomplete
    assert repair(tmp_path / "o.rec", tmp_path / "r.rec").lost == 0


def test_the_commands_say_it_in_text_and_json(folder, tmp_path, capfd):
    def said(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return capfd.readouterr().out

    out = str(tmp_path / "o.rec")
    text = said("pack", str(folder), out, "--check")
    assert text.count("packed as it is: ") == 4 and "4 incomplete" in text
    assert "incomplete image, grey from some row on (Corrupt JPEG data: premature end of data segment)" in text
    text = said("verify", out)
    assert text.count("incomplete image, grey") == 4 and "4 images are incomplete" in text
    found = json.loads(said("verify", out, "--json"))["incomplete"]
    assert len(found) == 4 and set(found[0]) == {"index", "offset", "reason"}
