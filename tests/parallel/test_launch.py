"""Two ranks over the parameter server: the same training, logs, faults that name the culprit."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from ranks import TWO, parameters_after

from gluontune import loading
from gluontune.cli.main import main
from gluontune.datasets.fashion import encode_grey
from gluontune.job import checkpoint
from gluontune.job.data import Feed
from gluontune.train import Group, RunFailed
from gluontune.training import rank_messages
from gluontune.training.rank_messages import difference_between, second_hand


def test_two_ranks_are_one_process_with_the_whole_batch(tmp_path):
    two = parameters_after(TWO, 20, tmp_path / "two")
    alone = TWO.override(engine="local", num_devices=1, batch_size_per_device=64)
    one = parameters_after(alone, 20, tmp_path / "one")
    assert len(one) == 6 and max(np.abs(one[name] - two[name]).max() for name in one) <= 1e-5


@pytest.mark.slow
def test_ranks_go_on_from_rank_0s_checkpoint(tmp_path):
    setup, extra = {"folder": str(tmp_path), "keep": 9}, {"val_accuracy": None}
    recipe = TWO.override(optimizer="adam", learning_rate=0.001)
    with Group(recipe, checkpoints=setup) as group:
        group.steps(3)
        group.checkpoint(extra, wait=True)
        group.steps(4)
        group.checkpoint(extra, wait=True)
    want = checkpoint.read(tmp_path / checkpoint.name_of(7))[1]
    with Group(recipe, checkpoints=setup) as group:
        group.restore(str(tmp_path / checkpoint.name_of(3)))
        group.steps(4)
        group.checkpoint(extra, wait=True)
    got = checkpoint.read(tmp_path / checkpoint.name_of(7))[1]
    assert all(want[name].tobytes() == got[name].tobytes() for name in want)


def test_logs_come_with_their_rank_and_a_stopped_rank_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_messages, "_SILENT_S", 5.0)
    text = "print('hello from the job', flush=True)\ndef data(): return 'sample'\n"
    (tmp_path / "job.py").write_text(text)
    said = []
    recipe = TWO.override(job=str(tmp_path / "job.py"))
    with Group(recipe, on_log=lambda rank, line: said.append((rank, line))) as group:
        group.steps(1)
        said = [line for line in said if "No cuda driver" not in line[1]]  # of MXNet's build for GPUs, at its import
        assert sorted(said) == [(0, "hello from the job"), (1, "hello from the job")]
        os.kill(group.ranks[1].process.pid, signal.SIGSTOP)
        with pytest.raises(RunFailed, match=r"rank 1 has given no sign of life for 5 s") as caught:
            group.steps(100)
    assert caught.value.kind == "RankSilent"


class SaysOnly:
    """A rank that has one thing to say, after so many times of asking."""

    def __init__(self, event, after=0):
        self.event, self.after = event, after

    def poll(self):
        self.after -= 1
        return self.event if self.after < 0 else None


@pytest.mark.parametrize(
    ("heard", "culprit"),
    [
        ({"event": "end"}, 1),
        ({"event": "error", "message": "the disk is full"}, 1),
        ({"event": "error", "message": "HorovodInternalError: shut down"}, 0),
        ({"event": "done"}, 0),
    ],
)
def test_who_lost_a_connection_is_not_blamed(monkeypatch, heard, culprit):
    monkeypatch.setattr(rank_messages, "_GRACE_S", 0.3)
    lost = {"event": "error", "message": "[gloo] Connection closed by peer [127.0.0.1]:9"}
    site = SimpleNamespace(trouble=lambda: None)
    ranks = [SaysOnly(lost), SaysOnly(heard, after=1)]
    place, event = rank_messages.RankMessages(site, ranks, 2, 5.0)._culprit(0, lost)
    assert place == culprit and event == (heard if culprit else lost)


def test_an_error_of_its_own_is_told_at_once():
    assert not second_hand({"event": "error", "message": "the loss has shape (3,)"})
    assert second_hand({"event": "error", "message": "Horovod has been shut down"})


def test_ranks_that_differ_are_named():
    alike = {"versions": {"mxnet": "1.9.1"}, "data": "8 images", "batches_per_epoch": 4}
    assert difference_between([alike, dict(alike)]) is None
    other = {**alike, "versions": {"mxnet": "1.9.0"}}
    assert "rank 2" in difference_between([alike, alike, other]) and "1.9.0" in difference_between([alike, other])


def test_data_that_differ_in_one_label_or_in_their_images_are_told_apart(tmp_path):
    def mark(value, labels=(0, 1, 2, 3)):
        files = [tmp_path / f"{value}{k}.png" for k in range(4)]
        for path in files:
            path.write_bytes(encode_grey(np.full((4, 4), value, np.uint8)))
        loader = loading.build("resident", loading.from_files(files, labels), batch_size=2, image_shape=(4, 4, 1))
        return Feed.mark(SimpleNamespace(train=loader, num_train=4))

    assert mark(7) == mark(7)
    assert len({mark(7), mark(8), mark(7, (0, 1, 2, 2))}) == 3


def test_launch_refuses_what_it_sets_itself(capsys):
    assert main(["launch", "--", "train", "--engine", "kvstore"]) == 2
    assert "--engine" in capsys.readouterr().err
    assert main(["launch", "--restart", "2", "--", "train"]) == 2
    assert "--checkpoint DIR" in capsys.readouterr().err
