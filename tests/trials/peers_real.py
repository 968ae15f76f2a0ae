"""The peers for real: ``make peers`` installs them and then runs this."""

from __future__ import annotations

import subprocess

import cv2
import numpy as np
import optim_cases as ours
import pytest

from gluontune.bench import peer_python
from gluontune.optim import schedules
from gluontune.records import RecordWriter
from gluontune.search.bench import loading


def test_the_peers_that_make_peers_installs_all_run(tmp_path):
    path, rng = tmp_path / "photos.rec", np.random.default_rng(0)
    with RecordWriter(path) as writer:
        for i in range(48):
            image = cv2.resize(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8), (128, 96))
            writer.write(cv2.imencode(".jpg", image)[1].tobytes(), float(i % 5))
    peers = ["DALI", "FFCV", "PyTorch", "WebDataset", "Streaming", "SPDL", "Grain", "nvImageCodec"]
    found = loading.run([path], size=64, batch_size=16, workers=1, rounds=1, seconds=0.05, only=peers)
    built = any(peer_python().parent.parent.glob(".ffcv-*"))
    ffmpeg = subprocess.run([peer_python(), "-c", "import spdl.io as io; io.demux_config()"], check=False).returncode
    absent = ({} if built else {"FFCV JPEG": "missing"}) | ({"SPDL": "failed"} if ffmpeg else {})
    for row in found["rows"]:
        assert row["status"] == absent.get(row["peer"], "ok"), (row["name"], row["reason"])
        assert row["info"].get("batch_shape") in ([16, 64, 64, 3], None)


@pytest.mark.parametrize("ranks", [1, 2])
def test_pytorch_trains_the_twin_of_a_residual_net(ranks):
    from gluontune.recipe import Recipe
    from gluontune.search.bench import tta_peers

    recipe = Recipe(train_samples=640, val_samples=256, loader="resident", epochs=3, batch_size_per_device=32 // ranks,
                    **({"engine": "kvstore", "num_devices": ranks} if ranks > 1 else {})).resolved()  # fmt: skip
    how = {"name": "PyTorch eager", "threads": 1, "channels_last": True, "compiled": False, "env": {}}
    result, clocks = tta_peers.train_torch(recipe, how, peer_python())
    assert result.ok, result.error
    assert result.steps == 60 and len(result.val_accuracy) == len(clocks.evaluations) == 3
    assert result.train_loss[-1] < result.train_loss[0] and result.val_accuracy[-1] > 0.3  # chance is 0.1


_THEIRS = """
import sys
import numpy as np, torch
from gluontune.search.bench._torch_tta import TorchMuon
data = dict(np.load(sys.argv[1]))
ps = [torch.nn.Parameter(torch.tensor(data[f"w{i}"])) for i in range(5)]
update = TorchMuon(torch, ps, lr=0.1, wd=0.1, momentum=0.9)
for step in range(3):
    for group in update.param_groups:
        group["lr"] = 0.1 / (step + 1)
    for i, p in enumerate(ps):
        p.grad = torch.tensor(data[f"g{i}"][step])
    update.step()
np.savez(sys.argv[1], **{f"w{i}": p.detach().numpy() for i, p in enumerate(ps)})
"""


def test_the_twins_muon_is_ours(tmp_path):
    from gluontune.optim.layerwise import GTMuon, nd

    rng = np.random.default_rng(0)
    shapes = [(8, 3, 3, 3), (8, 3, 3, 3), (4, 12), (12, 4), (8,)]
    data = {f"w{i}": rng.normal(size=shape).astype("float32") for i, shape in enumerate(shapes)}
    data |= {f"g{i}": rng.normal(size=(3, *shape)).astype("float32") for i, shape in enumerate(shapes)}
    path = tmp_path / "muon.npz"
    np.savez(path, **data)
    subprocess.run([peer_python(), "-c", _THEIRS, path], check=True)
    optimizer = GTMuon(learning_rate=0.1, wd=0.1, momentum=0.9, exempt_indices=frozenset({4}))
    optimizer.set_wd_mult({4: 0.0})
    weights = [nd.array(data[f"w{i}"]) for i in range(5)]
    states = [optimizer.create_state(i, w) for i, w in enumerate(weights)]
    for step in range(3):
        optimizer.set_learning_rate(0.1 / (step + 1))
        optimizer.update(list(range(5)), weights, [nd.array(data[f"g{i}"][step]) for i in range(5)], states)
    for theirs, w in zip(np.load(path).values(), weights):
        np.testing.assert_allclose(theirs, w.asnumpy(), rtol=1e-4, atol=1e-5)


_TORCH = """
import sys
import numpy as np, torch
o, data = torch.optim, dict(np.load(sys.argv[1]))
names = [n[2:] for n in data if n.startswith("w_")]
MADE = {
    "sgd": (o.SGD, {"momentum": 0.9}), "nag": (o.SGD, {"momentum": 0.9, "nesterov": True}),
    "adagrad": (o.Adagrad, {"eps": 1e-12}), "rmsprop": (o.RMSprop, {"alpha": 0.9, "eps": 1e-12}),
    "adadelta": (o.Adadelta, {"rho": 0.9, "eps": 1e-5}), "adam": (o.Adam, {"eps": 1e-12}), "adamw": (o.AdamW, {}),
    "adamax": (o.Adamax, {}), "nadam": (o.NAdam, {}),
}
found = {}
for name, (kind, options) in MADE.items():
    ws = {n: torch.nn.Parameter(torch.tensor(data["w_" + n], dtype=torch.float64)) for n in names}
    groups = [{"params": [w], "weight_decay": float(data["wd_" + name]) * (w.ndim > 1)} for w in ws.values()]
    update = kind(groups, lr=float(data["lr_" + name]), **options)
    for step in range(50):
        for n, w in ws.items():
            w.grad = torch.tensor(data["g_" + n][step], dtype=torch.float64)
        update.step()
    found.update({name + "_" + n: w.detach().numpy() for n, w in ws.items()})
np.savez(sys.argv[1], **found)
"""
_OPTAX = """
import sys
import jax, numpy as np, optax
jax.config.update("jax_enable_x64", True)
data = dict(np.load(sys.argv[1]))
names = [n[2:] for n in data if n.startswith("w_")]
found = {}
for name in ("lamb", "lars", "novograd"):
    rate, wd = float(data["lr_" + name]), float(data["wd_" + name])
    ws = {n: np.asarray(data["w_" + n], "float64") for n in names}
    if name == "lamb":
        update = optax.lamb(rate, weight_decay=wd, mask=lambda ps: {n: p.ndim > 1 for n, p in ps.items()})
    elif name == "lars":
        update = optax.lars(rate, trust_coefficient=0.02, momentum=0.9)
    else:
        update = optax.novograd(rate, b1=0.95, b2=0.98, eps=1e-8, weight_decay=0.0)
    state = update.init(ws)
    for step in range(50):
        gs = {n: np.asarray(data["g_" + n][step], "float64") for n in names}
        changes, state = update.update(gs, state, ws)
        ws = optax.apply_updates(ws, changes)
    found.update({name + "_" + n: np.asarray(w) for n, w in ws.items()})
np.savez(sys.argv[1], **found)
"""
#: Without decay where others decay elsewhere, and with one epsilon where others add it elsewhere in a denominator.
_ALIKE = {
    "adagrad": {"wd": 0.0, "eps": 1e-12}, "rmsprop": {"epsilon": 1e-12}, "adam": {"epsilon": 1e-12},
    "lars": {"wd": 0.0}, "novograd": {"wd": 0.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("script", "names", "vectors"),
    [
        (_TORCH, ("sgd", "nag", "adagrad", "rmsprop", "adadelta", "adam", "adamw", "adamax", "nadam"), True),
        (_OPTAX, ("lamb", "lars", "novograd"), False),  # theirs have no exemption from the trust ratio
    ],
    ids=["PyTorch", "optax"],
)
def test_optimizers_that_others_have_follow_theirs(tmp_path, monkeypatch, script, names, vectors):
    """50 updates against theirs in float64, at one rate: MXNet's momentum has the rates in it, PyTorch's not."""
    weights, grads = ours.weights_and_grads()
    usual = ours.WD
    monkeypatch.setattr(ours, "schedule_of", lambda case: schedules.constant(base_lr=case.lr))
    path = tmp_path / "theirs.npz"
    np.savez(
        path,
        **{f"w_{n}": w for n, w in weights.items()},
        **{f"g_{n}": np.stack([step[n] for step in grads]) for n in weights},
        **{f"lr_{name}": ours.CASES[name].lr for name in names},
        **{f"wd_{name}": _ALIKE.get(name, {}).get("wd", usual) for name in names},
    )
    subprocess.run([peer_python(), "-c", script, path], check=True)
    theirs = np.load(path)
    for name in names:
        options = dict(_ALIKE.get(name, {}))
        monkeypatch.setattr(ours, "WD", options.pop("wd", usual))
        params, trainer = ours.make(name, weights, ours.ONE, **options)
        ours.steps(params, trainer, grads, ours.ONE)
        compared = {n: theirs[f"{name}_{n}"] for n, w in weights.items() if vectors or w.ndim > 1}
        apart = ours.distance(params, compared, ours.ONE[0])
        assert apart <= 1e-6, (name, apart)
