"""``gluontune migrate``: the written project runs without mxnet and gluontune, and computes the same."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from warm_python import warm

import gluontune as gt
from gluontune.cli.main import main
from gluontune.convert.migrate import project as written
from gluontune.core.errors import GluontuneError, UsageError

torch = pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch):
    """``check.py`` runs where PyTorch is imported already; the command's doctests start it as users' machines do."""
    monkeypatch.setattr(written, "run_check", lambda place: warm("torch").run(place, "check.py"))


_SHUT = """
import sys
class Shut:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("mxnet", "gluontune", "gluoncv"):
            raise ImportError(name + " is shut out")
sys.meta_path.insert(0, Shut())
"""


def run_alone(folder):
    """``check.py`` where neither mxnet nor gluontune can be imported."""
    code = f"{_SHUT}\nimport runpy; sys.path.insert(0, '.'); runpy.run_path('check.py', run_name='__main__')"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def net_of(name, shape=(2, 3, 32, 32)):
    mx = gt.runtime.mxnet()
    mx.random.seed(1)
    net = gt.train.build_net(name, 10)
    net.initialize(mx.init.Xavier(magnitude=2))
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    net(mx.nd.array(x))
    return net, x


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    out = tmp_path_factory.mktemp("migrated") / "net"
    code = main(
        ["migrate", "--net", "cifar_resnet20_v1", "--dataset", "sample", "--job", str(_job(out.parent)), str(out)]
    )
    return code, out


def _job(folder):
    path = folder / "job.py"
    path.write_text(
        "from mxnet.gluon import nn\n\n\n"
        "class Branch(nn.HybridBlock):\n"
        "    def __init__(self, channels, inside):\n"
        "        super().__init__()\n"
        "        self.body = nn.HybridSequential()\n"
        "        self.body.add(nn.Conv2D(inside, 3, padding=1, activation='relu'), nn.BatchNorm(),\n"
        "                      nn.Conv2D(channels, 1, use_bias=False), nn.LeakyReLU(0.1))\n\n"
        "    def hybrid_forward(self, F, x):\n"
        "        return F.relu(x + self.body(x)) * 0.5\n\n\n"
        "def net():\n"
        "    found = nn.HybridSequential()\n"
        "    found.add(nn.Conv2D(8, 3), Branch(8, 4), nn.MaxPool2D(), Branch(8, 12), nn.Dropout(0.3), nn.Dense(10))\n"
        "    return found\n\n\n"
        "def data():\n    return 'sample'\n",
        "utf-8",
    )
    return path


def test_the_project_of_a_job_runs_alone_and_agrees(project):
    code, out = project
    assert code == 0
    ran = run_alone(out)
    assert ran.returncode == 0 and ran.stdout.strip().endswith("agrees"), ran.stderr
    assert "gradients: 14 compared" in ran.stdout and "running statistics: 4" in ran.stdout


def test_blocks_of_the_same_structure_share_a_class(project):
    text = (project[1] / "model.py").read_text("utf-8")
    assert text.count("class Branch") == 1 and text.count("Branch(") == 3  # the class and both that are made
    assert "nn.Dropout(0.3)" in text and "mxnet." not in text


def test_the_project_passes_ruff(project):
    ruff = importlib.util.find_spec("ruff")
    assert ruff is not None
    ran = subprocess.run([sys.executable, "-m", "ruff", "check", "."], cwd=project[1], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


def run_training(folder, *arguments):
    """``train.py`` where neither mxnet nor gluontune can be imported."""
    code = f"{_SHUT}\nimport runpy; sys.argv = ['train.py', *{arguments!r}]; sys.path.insert(0, '.'); "
    code += "runpy.run_path('train.py', run_name='__main__')"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def migrated(tmp_path, recipe, name="cifar_resnet20_v1"):
    net, x = net_of(name, (4, 1, 28, 28))
    made = gt.bridge.migrate(net, tmp_path / "out", x, recipe=recipe, data=gt.datasets.open("sample"))
    assert made.agrees and made.untrained is None
    return net, tmp_path / "out"


def test_the_project_goes_on_training_by_the_recipe(tmp_path):
    recipe = gt.Recipe(train_samples=1000, val_samples=200, optimizer="muon", augment="pad-crop-flip", accumulate=2)
    _, out = migrated(tmp_path, recipe, "small_cnn")
    ran = run_training(out, "--epochs", "2.5", "--fresh")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1", "epoch 2", "epoch 3"]
    assert float(lines[-1].split("accuracy ")[1].split(",")[0]) > 0.5, ran.stdout
    trained, begun = (torch.load(out / name, weights_only=True) for name in ("trained.pt", "weights.pt"))
    assert list(trained) == list(begun)
    checked = subprocess.run([sys.executable, "-m", "ruff", "check", "."], cwd=out, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


RECIPES = {
    "nag": {"clip_global_norm": 0.5},
    "muon": {"schedule": "cosine", "warmup_epochs": 0.5},
    "adamw": {"schedule": "multifactor", "schedule_params": {"steps": [5, 9], "factor": 0.5}},
    "sgd": {"schedule": "factor", "schedule_params": {"step": 0.5, "factor": 0.5, "unit": "epochs"}},
    "lamb": {"schedule": "poly", "schedule_params": {"pwr": 1}},
    "lars": {"schedule": "constant", "optimizer_params": {"clip_gradient": 0.01}},
}


@pytest.mark.parametrize("name", RECIPES)
def test_rates_and_updates_are_those_of_the_recipe(name, tmp_path, monkeypatch):
    from gluontune.optim.cards import rates_of
    from gluontune.optim.torch_rules import TorchOptimizer

    recipe = gt.Recipe(optimizer=name, train_samples=640, val_samples=50, epochs=2, **RECIPES[name])
    _, out = migrated(tmp_path, recipe, "small_cnn")
    monkeypatch.syspath_prepend(str(out))
    for own in ("train", "model", "rules", "operators"):
        monkeypatch.delitem(sys.modules, own, raising=False)
    train = importlib.import_module("train")
    module = train.build().double()
    module.load_state_dict({k: v.double() for k, v in torch.load(out / "weights.pt", weights_only=True).items()})
    theirs = {n: torch.nn.Parameter(p.detach().clone()) for n, p in module.named_parameters()}
    recipe = recipe.resolved()
    rates = rates_of(recipe, steps=20, steps_per_epoch=10)
    expected = TorchOptimizer(name, theirs, rates, momentum=recipe.momentum, wd=recipe.wd, **recipe.optimizer_params)
    assert [train.rate(n) for n in range(1, 21)] == pytest.approx([rates(n) for n in range(1, 21)])
    optimizer, rng = train.Optimizer(module, 20), torch.Generator().manual_seed(0)
    for _ in range(3):
        for n, p in module.named_parameters():
            p.grad = torch.randn(p.shape, generator=rng, dtype=p.dtype)
            theirs[n].grad = p.grad.clone()
        factor = 1.0
        if recipe.clip_global_norm:
            norm = sum((p.grad**2).sum() for p in theirs.values()).sqrt()
            factor = (recipe.clip_global_norm / (norm + 1e-12)).clamp(max=1.0)
        expected.step(factor)
        optimizer.step()
    moved = [float((theirs[n] - p).detach().abs().max()) for n, p in module.named_parameters()]
    assert max(moved) < 1e-6, moved
    for own in ("train", "model", "rules", "operators"):
        sys.modules.pop(own, None)


def test_images_are_cropped_and_mirrored_as_the_recipe_says(tmp_path, monkeypatch):
    recipe = gt.Recipe(train_samples=64, val_samples=20, augment="pad-crop-alternating-flip", loader="resident")
    _, out = migrated(tmp_path, recipe, "mlp")
    source = (out / "train.py").read_text()
    held = {}
    exec(source[source.index("def augmented") : source.index("def tensor")], {"np": np}, held)
    images, index = np.load(out / "data.npz")["train_images"], np.arange(64)
    split = gt.datasets.open("sample").train
    assert (images[5] == split.decode(5)).all()
    rng = np.random.default_rng(0)
    first, second = (held["augmented"](images, index, epoch, rng) for epoch in (0, 1))
    assert first.shape == images.shape and (first != second).any()

    def shifted(image):
        padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), "reflect")
        return [padded[y : y + 28, x : x + 28] for y in range(9) for x in range(9)]

    def sides(found):
        straight = [any((crop == f).all() for crop in shifted(i)) for i, f in zip(images, found)]
        mirrored = [any((crop == f).all() for crop in shifted(i[:, ::-1])) for i, f in zip(images, found)]
        assert all(a or b for a, b in zip(straight, mirrored))
        return np.array(mirrored)

    one, two = sides(first), sides(second)
    assert (one != two).all() and 15 < one.sum() < 50, "each image is mirrored in every second epoch"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"methods": {"mixup": True}, "loader": "resident"}, "methods"),
        ({"augment": "random-resized-crop-flip"}, "resized-crop"),
        ({"optimizer": "yellowfin"}, "yellowfin"),
        ({"last_batch": "keep"}, "last_batch"),
    ],
)
def test_what_has_no_plain_training_says_so(fields, said, tmp_path):
    net, x = net_of("mlp", (4, 1, 28, 28))
    recipe = gt.Recipe(train_samples=128, val_samples=20, **fields)
    made = gt.bridge.migrate(net, tmp_path / "out", x, recipe=recipe, data=gt.datasets.open("sample"))
    assert made.agrees and said in made.untrained and "train.py" not in made.files


def test_a_loss_of_the_jobs_own_is_told_by_the_command(tmp_path, capfd):
    job = tmp_path / "job.py"
    job.write_text(
        "from mxnet import gluon\n\n\ndef loss():\n    return gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)\n"
    )
    assert main(["migrate", str(job), str(tmp_path / "out"), "--net", "mlp", "--json"]) == 0
    assert "SoftmaxCrossEntropyLoss" in json.loads(capfd.readouterr().out)["untrained"]


def test_a_weight_that_was_altered_is_seen(project, tmp_path):
    for name in os.listdir(project[1]):
        if (project[1] / name).is_file():
            (tmp_path / name).write_bytes((project[1] / name).read_bytes())
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    weights["0.bias"][0] += 1e-3
    torch.save(weights, tmp_path / "weights.pt")
    ran = run_alone(tmp_path)
    assert ran.returncode == 1 and "does NOT agree" in ran.stdout


def test_a_net_of_gluoncv_keeps_gluons_names_and_what_is_not_trained(tmp_path):
    net, x = net_of("cifar_resnet20_v2")  # begins with a BatchNorm whose gamma and beta are fixed
    made = gt.bridge.migrate(net, tmp_path / "out", x)
    assert made.agrees, made.told
    names = set(torch.load(tmp_path / "out" / "weights.pt", weights_only=True))
    assert names == set(net._collect_params_with_prefix())
    code = (
        "import json, model\nprint(json.dumps([n for n, p in model.build().named_parameters() if not p.requires_grad]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=made.path, capture_output=True, text=True, check=True)
    states = ("running_mean", "running_var")
    fixed = [n for n, p in net._collect_params_with_prefix().items() if p.grad_req == "null" and not n.endswith(states)]
    assert sorted(json.loads(ran.stdout)) == sorted(fixed) and len(fixed) == 2


def test_what_cannot_be_migrated_is_told(tmp_path, capfd):
    mx = gt.runtime.mxnet()

    class Odd(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x * float(x.sum().asscalar())

    net = Odd()
    net.initialize()
    with pytest.raises(GluontuneError, match=r"Odd cannot be traced at .*test_migrate.py:\d+"):
        gt.bridge.migrate(net, tmp_path / "odd", np.ones((1, 2), "float32"))
    assert not (tmp_path / "odd").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match="holds files already"):
        gt.bridge.migrate(net, tmp_path / "full", np.ones((1, 2), "float32"))
    assert main(["migrate", "net-symbol.json", str(tmp_path / "x")]) == 2
    assert "lost its blocks" in capfd.readouterr().err
    assert main(["migrate", str(tmp_path / "none.params"), str(tmp_path / "x"), "--json"]) == 1
    assert "no such file" in capfd.readouterr().err


def test_names_are_listed_without_a_place_to_write(capfd):
    assert main(["migrate", "--list", "net"]) == 0
    assert "cifar_resnet20_v1" in capfd.readouterr().out
    assert main(["migrate", "--net", "mlp"]) == 2
    assert "[SOURCE] OUT" in capfd.readouterr().err


def test_json_says_what_was_written(tmp_path, capfd):
    assert main(["migrate", "--net", "mlp", "--dataset", "sample", str(tmp_path / "mlp"), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["agrees"] and "model.py" in found["files"] and found["parameters"] > 1000


def test_a_long_comprehension_stays_whole():
    from gluontune.convert.migrate.text import tidied

    long = "extra = [_extra(i, k, s, p, convention) for i, k, s, p in zip(x.shape[2:], kernel, stride, padding_of_it)]"
    text = f"def f(x, kernel, stride, padding_of_it, convention):\n    {long}\n    return extra\n"
    assert "for i, k, s, p in zip" in tidied(text)
