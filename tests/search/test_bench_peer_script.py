"""A script of the user's beside a recipe: what it prints is read as it comes, and what goes wrong is a row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gluontune.cli.main import main
from gluontune.core.errors import UsageError
from gluontune.recipe import Recipe
from gluontune.search.bench import tta_peers

ROOT = Path(__file__).parents[2]
GOOD = """
import json, os
print("epoch 1")
print(json.dumps({"seconds": 1.5, "accuracy": 0.4}))
print('{"not": "ours"}')
print(json.dumps({"seconds": 3.5, "accuracy": 0.7 + int(os.environ["GLUONTUNE_SEED"]) / 100, "flipped": 0.8}))
"""


def script(tmp_path, text):
    path = tmp_path / "peer.py"
    path.write_text(text)
    return str(path)


def train(tmp_path, text, **how):
    recipe = Recipe(seed=3, target_accuracy=how.pop("target", None))
    return tta_peers.train_script(recipe, tta_peers.command_of(script(tmp_path, text)), machine={}, **how)


def test_validations_are_read_with_the_seed_of_the_repeat(tmp_path):
    result, clocks = train(tmp_path, GOOD)
    assert result.ok and result.val_accuracy == [0.4, 0.73] and result.elapsed_seconds == [1.5, 3.5]
    assert result.epoch_seconds == [1.5, 2.0] and result.val_metric["flipped"] == [0.8]
    assert len(clocks.evaluations) == 2


def test_a_run_ends_at_its_target_and_leaves_no_process(tmp_path):
    slow = "import os, time\nprint(os.getpid(), flush=True)\n"
    slow += 'print(\'{"seconds": 1, "accuracy": 0.9}\', flush=True)\ntime.sleep(60)\n'
    slow = slow.replace(
        "print(os.getpid(), flush=True)", f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    )
    began = time.monotonic()
    result, _ = train(tmp_path, slow, target=0.9)
    assert result.ok and result.val_accuracy == [0.9] and time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('no data')", "ValueError: no data"),
        ("print('done')", "printed no line"),
        ('print(\'{"seconds": 1, "accuracy": 91}\')', "accuracy=91.0"),
        ('print(\'{"seconds": 1, "accuracy": NaN}\')', "accuracy=nan"),
        ('print(\'{"seconds": 2, "accuracy": 0.1}\')\nprint(\'{"seconds": 1, "accuracy": 0.2}\')', "went back"),
        ("import time; time.sleep(60)", "no line for 1 s"),
    ],
)
def test_a_script_that_goes_wrong_is_a_failed_run_that_says_how(tmp_path, text, said):
    result, _ = train(tmp_path, text, time_limit=1.0 if "sleep" in text else 60.0)
    assert result.status == "failed" and "peer.py" in result.error["message"]
    assert said.replace("91.0", "91") in result.error["message"]


def test_no_such_script_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        tta_peers.command_of("nowhere.py")
    with pytest.raises(UsageError, match="No closing quotation"):
        tta_peers.command_of("a.py 'b")
    with pytest.raises(UsageError, match="no interpreter at"):
        tta_peers.command_of(script(tmp_path, ""), tmp_path / "python")


@pytest.mark.process
def test_the_command_runs_both_in_turn_and_gives_the_ratio(tmp_path, capfd):
    recipe = tmp_path / "small.yaml"
    fields = {"net": "mlp", "loader": "resident", "train_samples": 640, "val_samples": 200, "epochs": 2}
    recipe.write_text(json.dumps({**fields, "target_accuracy": 0.2}))
    arguments = ["--recipe", str(recipe), "--repeats", "2", "--out", str(tmp_path / "out")]
    assert main(["tta", *arguments, "--against-peer", script(tmp_path, GOOD), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [row["recipe"] for row in found["done"]] == ["this", "against", "against", "this"]
    assert found["given"]["target"] == 0.2, "the recipe's own target"
    ours = [row["first"]["train_seconds"] for row in found["done"] if row["recipe"] == "this"]
    assert found["ratio"]["train_seconds"]["median"] == pytest.approx((1.5 / ours[0] * 1.5 / ours[1]) ** 0.5, rel=0.5)
    assert found["summary"]["against"]["flipped"]["mean"] == 0.8
    assert found["summary"]["against"]["accuracy"]["each"] == [0.7, 0.71]
    assert main(["tta", *arguments, "--against-peer", "nowhere.py"]) == 2
    assert "--against-peer nowhere.py" in capfd.readouterr().err
    assert main(["tta", "--target", "0.2", "--against-peer", "a.py", "--against-torch"]) == 2
    assert "give one of them" in capfd.readouterr().err


LIKE_AIRBENCH = """
import torch, torchvision, torchvision.transforms as T

@torch.compile
def twice(x):
    return 2 * x

class CifarNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(1, 1)
        self.half()

def print_training_details(variables, is_final_entry):
    raise AssertionError("shown by the wrapper")

def main(run, model):
    data = torch.load("cifar10/test.pt", map_location=torch.device("cuda"))
    images = (data["images"].half() / 255).permute(0, 3, 1, 2)
    normalized = T.Normalize(torch.tensor((0.5,)), torch.tensor((0.25,)))(images)
    assert normalized.dtype == model.fc.weight.dtype == torch.bfloat16 and twice(normalized).max() <= 4
    starter, ender = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    starter.record()
    ender.record()
    torch.cuda.synchronize()
    time_seconds = 1 + 1e-3 * starter.elapsed_time(ender)
    val_acc, tta_val_acc = 0.5, None
    print_training_details(locals(), is_final_entry=False)
    tta_val_acc = 0.625
    print_training_details(locals(), is_final_entry=True)

if __name__ == "__main__":
    model = CifarNet().cuda()
    raise AssertionError("200 runs")
"""


@pytest.mark.process
def test_a_script_for_one_gpu_runs_on_a_cpu(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks/airbench_on_cpu.py"), script(tmp_path, LIKE_AIRBENCH)]
    done = subprocess.run([*command, "--dataset", "sample"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(line) for line in seen] == [["seconds", "accuracy"], ["seconds", "accuracy", "flipped"]]
    assert seen[0]["accuracy"] == 0.5 and seen[1]["flipped"] == 0.625 and 1 <= seen[0]["seconds"] < 2
