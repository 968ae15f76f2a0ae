"""``gluontune size``, as a user calls it."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest

from gluontune.cli.main import main
from gluontune.records import RecordWriter


@pytest.fixture(scope="module")
def rec(tmp_path_factory):
    path = tmp_path_factory.mktemp("size") / "small.rec"
    with RecordWriter(path) as writer:
        for i in range(32):
            image = np.full((40, 40, 3), 8 * i, np.uint8)
            writer.write(cv2.imencode(".jpg", image)[1].tobytes(), label=i % 2)
    return path


QUICK = ["--size", "32", "--batch-size", "8", "--seconds", "0.06", "--max-workers", "1"]


def test_json_is_one_document_on_stdout(rec, capfd):
    assert main(["size", str(rec), *QUICK, "--step-time-ms", "60", "--json"]) == 0
    out, _ = capfd.readouterr()
    report = json.loads(out)
    assert report["choice"] in report["points"]
    assert report["needed_samples_per_sec"] == pytest.approx(8 / 0.06)
    assert report["rule"]["text"] == "cpu_count() - 3"
    assert set(report["disk"]) >= {"sequential_mib_per_sec", "random"}


def test_the_table_says_what_to_choose_and_why(rec, capfd):
    assert main(["size", str(rec), *QUICK, "--no-disk", "--loader", "threaded"]) == 0
    out, _ = capfd.readouterr()
    assert "choose loader=threaded, num_workers=" in out
    assert "chosen" in out and "cpu_count() - 3" in out and "limit of decoding alone" in out
    assert "limit of the disk" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["absent.rec"], 1, "absent.rec: no such file"),
        (["REC", "--loader", "thread"], 2, "did you mean 'threaded'"),
        (["REC", "--augment", "flop"], 2, "unknown augmentation 'flop'"),
        (["REC", "--step-time-ms", "-1"], 2, "step_time_ms=-1"),
        (["REC", "--channels", "2"], 2, "image_shape"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(rec, capfd, arguments, code, words):
    arguments = [str(rec) if a == "REC" else a for a in arguments]
    assert main(["size", *arguments, *QUICK]) == code
    out, err = capfd.readouterr()
    assert words in err and "Traceback" not in err and out == ""
