"""Logs: written line by line, read back whole or cut, in three formats."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from gluontune.core.errors import GluontuneError
from gluontune.monitor import Monitor, SimulatedDevice, TensorBoard, prometheus_text, read_log, run_result
from gluontune.monitor.logs import JsonLines
from gluontune.recipe.result import RunResult


def sample(t, cpu=50.0, gpu=30.0):
    return {"t_s": t, "cpu_pct": cpu, "rss_mib": 10.0 * t, "gpu_util_pct": {"0": gpu}, "gpu_mem_mib": {"0": 5.0}}


@pytest.fixture
def log_path(tmp_path):
    path = tmp_path / "deep" / "run.jsonl"
    with JsonLines(path, {"command": ["train"], "machine": {"cores": 2}}) as log:
        log.mark(0.5, "train")
        for k in range(1, 9):
            log(sample(float(k)))
        log.mark(6.0, "validate")
    return path


def test_a_log_reads_back_as_it_was_written(log_path):
    log = read_log(log_path)
    assert log.facts["command"] == ["train"] and log.damaged == []
    assert log.samples == [sample(float(k)) for k in range(1, 9)]
    assert log.spans("train") == [(0.5, 6.0)] and log.spans("validate") == [(6.0, 8.0)]
    assert log.series()["gpu_util_pct"] == {"0": [30.0] * 8}


def test_each_line_is_on_the_disk_at_once(tmp_path):
    log = JsonLines(tmp_path / "a.jsonl")
    log(sample(1.0))
    assert len(read_log(tmp_path / "a.jsonl").samples) == 1
    log.close()


def test_a_log_cut_anywhere_after_its_first_line_is_read_to_the_cut(log_path):
    whole = log_path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in range(len(lines[0]), len(whole)):
        log_path.write_bytes(whole[:cut])
        log = read_log(log_path)
        complete = whole[: cut + 1].splitlines()  # a line that lacks only its end is complete
        kept = len(log.samples) + len(log.marks)
        assert kept + len(log.damaged) >= len(complete) - 2
        assert len(log.damaged) <= 1
        run_result(log)


def test_a_damaged_line_in_the_middle_costs_that_line(log_path):
    lines = log_path.read_bytes().split(b"\n")
    lines[3] = lines[3][:10] + b"\xff\x00" + lines[4]
    log_path.write_bytes(b"\n".join(lines))
    log = read_log(log_path)
    assert log.damaged == [4] and len(log.samples) == 7
    assert "[4]" in run_result(log).notes[0]


@given(st.binary(max_size=200))
def test_any_rubbish_after_the_first_line_is_survived(rubbish):
    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "x.jsonl")
        path.write_bytes(b'{"gluontune_monitor_log": 1}\n' + rubbish)
        run_result(read_log(path))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"hello\n", "not a gluontune monitor log"),
        (b'{"t_s": 1}\n', "not a gluontune monitor log"),
        (b'{"gluontune_monitor_log": 99}\n', "log version 99"),
    ],
)
def test_what_is_no_log_is_said(tmp_path, content, word):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(GluontuneError, match=word):
        read_log(path)
    with pytest.raises(GluontuneError, match=r"missing\.jsonl: no such file"):
        read_log(tmp_path / "missing.jsonl")


def test_a_log_becomes_a_run_result(log_path, tmp_path):
    result = run_result(read_log(log_path), {"dataset": "sample"})
    assert result.peak_rss_mib == 80 and result.peak_gpu_mib == 5
    assert result.machine == {"cores": 2}
    assert result.steadiness["mean_pct"] == pytest.approx(30) and result.steadiness["device"] == "gpu"
    assert result.steadiness["measured_s"] == pytest.approx(5.5)  # the marked training only
    result.save(tmp_path / "r.json")
    assert RunResult.load(tmp_path / "r.json") == result


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GluontuneError, match="file"):
        JsonLines(tmp_path / "file" / "x.jsonl")


def test_a_monitor_logs_what_it_sees(tmp_path):
    path = tmp_path / "m.jsonl"
    with JsonLines(path) as log, Monitor(gpus="none", devices=[SimulatedDevice(1)], on_sample=log) as monitor:
        pass
    read = read_log(path)
    assert len(read.samples) == monitor.taken >= 1
    assert read.series()["rss_mib"] == monitor.series()["rss_mib"]
    assert monitor.faults == 0


def test_prometheus_text_is_what_its_parser_reads():
    parser = pytest.importorskip("prometheus_client.parser", reason="wants prometheus-client (pip install)")
    text = prometheus_text({**sample(1.0), "system_mem_pct": None}, {"job": 'a "b"\\c\nd'})
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    row = families["gluontune_gpu_util_pct"].samples[0]
    assert row.labels == {"job": 'a "b"\\c\nd', "device": "0"} and row.value == 30
    assert families["gluontune_cpu_pct"].type == "gauge"
    assert "gluontune_system_mem_pct" not in families


def test_tensorboard_gets_each_figure(monkeypatch, tmp_path):
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            self.folder = folder

        def add_scalar(self, tag, value, step, walltime):
            written.append((tag, value, step, walltime))

        def close(self):
            written.append("closed")

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=SummaryWriter))
    with TensorBoard(tmp_path, started_at=100.0) as board:
        board({"t_s": 1.5, "cpu_pct": 50.0, "rss_mib": None, "gpu_util_pct": {"0": 30.0, "1": None}})
    assert written == [
        ("gluontune/cpu_pct", 50.0, 1500, 101.5),
        ("gluontune/gpu_util_pct/0", 30.0, 1500, 101.5),
        "closed",
    ]


def test_tensorboard_without_its_package_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(GluontuneError, match="pip install tensorboardX"):
        TensorBoard(tmp_path)


def test_samples_are_json(tmp_path):
    monitor = Monitor(gpus="none")
    json.dumps(monitor.sample(), allow_nan=False)
