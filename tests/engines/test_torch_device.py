"""PyTorch's engine on GPUs that record its calls: order, streams, formats, graphs, memory; float16 on a CPU, too."""

from __future__ import annotations

import copy
import functools
import os
from types import SimpleNamespace

import numpy as np
import pytest
from fake_gpu import FakeGpu

import gluontune as gt
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.engines.torch import session as module
from gluontune.engines.torch.device import Device
from gluontune.engines.torch.export import exported
from gluontune.job.checkpoint import Writer

torch = pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")

PLAIN = {
    "net": "small_cnn", "dataset": "sample", "loader": "resident", "augment": "none", "train_samples": 640,
    "val_samples": 200, "learning_rate": 0.05, "backend": "torch",
}  # fmt: skip


def test_compiled_code_is_kept_where_nobody_else_writes(tmp_path, monkeypatch):
    """PyTorch's own place for it is a name in /tmp, which another user may take first."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gt.runtime.pytorch.torch()
    place = tmp_path / "gluontune" / "native" / "torch"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(place) and place.stat().st_mode & 0o777 == 0o700
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert cache_dir() == str(place)
    place.chmod(0o777)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    gt.runtime.pytorch.torch()
    other = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    assert other != str(place) and os.stat(other).st_mode & 0o777 == 0o700
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    gt.runtime.pytorch.torch()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/mine"


SMALL_HALF = {"net": "mlp", "dtype": "float16"}  # convolutions in float16 take seconds on a CPU


@functools.cache
def export(net):
    return exported(gt.Recipe(**{**PLAIN, "net": net}))


@pytest.fixture
def started():
    """Starts sessions, and closes them."""
    opened = []

    def start(rank=0, world=1, **changes):
        recipe = gt.Recipe(**{**PLAIN, **changes})
        session = module.TorchSession(recipe, rank, world, job=copy.deepcopy(export(recipe.net)))
        opened.append(session)
        session.build()
        return session

    yield start
    for session in opened:
        session.close()


@pytest.fixture(autouse=True)
def settings_of_the_process():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    yield
    FakeGpu.leave()
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.benchmark = before[1]


def test_a_compiled_bfloat16_step_on_a_listed_gpu_asks_in_this_order(started, monkeypatch):
    gpu = FakeGpu(monkeypatch, torch, count=3)
    session = started(devices="gpu:2", hybridize="static", dtype="bfloat16")
    assert gpu.calls[0] == ("set_device", "cuda:2") and session.site()["device"] == "gpu"
    assert gpu.named("compile") == [("compile", {"mode": "reduce-overhead"})]
    assert {call[1] for call in gpu.named("move") if len(call) == 4} == {"cuda:2"}, "net and loss"
    gpu.calls.clear()
    session.steps(1)
    step = [call for call in gpu.calls if call[0] not in ("pin", "move", "make")]
    assert step == [
        ("wait", "default", "side"), ("record", "uint8", "default"), ("record", "int64", "default"),
        ("new graph step",), ("autocast", "cuda", torch.bfloat16), ("synchronize", "cuda:2"),
    ]  # fmt: skip
    copies = {call[1:] for call in gpu.named("move")}
    assert copies == {(dtype, "cuda:2", "side", "non_blocking") for dtype in ("uint8", "int64")}
    assert session.net.training and all(p.dtype is torch.float32 for p in session.net.parameters())


def test_a_graphs_outputs_are_copied_before_it_runs_again(started, monkeypatch):
    FakeGpu(monkeypatch, torch)
    flips = {"methods": {"flip-validation": {"last": False}}}
    seen = [started(hybridize=how, **flips).validate() for how in ("hybridized", "static")]
    assert seen[1]["loss"] == pytest.approx(seen[0]["loss"], rel=1e-5)
    assert [s["accuracy"] for s in seen] == [seen[0]["accuracy"]] * 2 and seen[0]["accuracy"] > 0


@pytest.mark.parametrize(
    ("changes", "capability", "told"),
    [
        ({"runtime": "tuned"}, (8, 0), "in convolutions and matrix products; env: {NVIDIA_TF32_OVERRIDE: '0'}"),
        ({}, (9, 0), "in convolutions; env"),
        ({}, (7, 5), "no TF32"),
        ({"dtype": "bfloat16"}, (8, 0), None),
    ],
)
def test_tf32_is_said_aloud(started, monkeypatch, changes, capability, told):
    torch.set_float32_matmul_precision("highest")
    FakeGpu(monkeypatch, torch, capability=capability)
    session = started(**changes)
    notes = session.news
    assert (told in notes[0]) if told else notes == []
    assert torch.backends.cudnn.benchmark is (changes.get("runtime") == "tuned")
    if capability == (9, 0):
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        assert "no TF32" in session.device.warnings()[0]
        monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        assert session.device.warnings() == ["float32 on this GPU: TF32, with 10 bits of mantissa, in nothing"]


@pytest.mark.parametrize(
    ("changes", "how", "told"),
    [
        ({"devices": "gpu"}, {"count": 0}, "devices='gpu': this PyTorch sees no GPU; use devices='cpu'"),
        ({"devices": "gpu:0,3"}, {"rank": 1}, "devices='gpu:0,3': no GPU for rank 1 .*sees 2"),
        ({"devices": "gpu"}, {"rank": 2}, "no GPU for rank 2"),
        ({"dtype": "bfloat16"}, {"capability": (7, 5)}, "dtype='bfloat16': this GPU .*use dtype='float16'"),
    ],
)
def test_a_device_that_cannot_is_refused_with_the_field(monkeypatch, changes, how, told):
    rank = how.pop("rank", 0)
    FakeGpu(monkeypatch, torch, **{"count": 2, **how})
    ranks = {"engine": "ddp", "num_devices": rank + 1} if rank else {}
    with pytest.raises(UsageError, match=told):
        Device(torch, gt.Recipe(**{**PLAIN, **ranks, **changes}), rank)


def test_an_older_pytorch_without_float16_on_a_cpu_is_told(monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda kind, dtype: torch.no_grad())
    with pytest.raises(UsageError, match=r"dtype='float16': PyTorch .*use dtype='bfloat16'"):
        Device(torch, gt.Recipe(**PLAIN, dtype="float16"), 0)


def test_listed_gpus_are_as_many_as_are_used():
    recipe = gt.Recipe().override(devices="gpu:0,1")
    assert recipe.num_devices == 2 and recipe.override(num_devices=1).devices == "gpu:0,1"
    assert gt.Recipe.from_dict({"devices": "gpu:3,1,0"}).num_devices == 3
    for wrong in ("gpu:", "gpu:a", "gpu:1,1", "cpu:0", None):
        with pytest.raises(UsageError, match=r"devices=.*choose one of auto, cpu, gpu, or the numbers of GPUs"):
            gt.Recipe(devices=wrong)


def test_out_of_memory_names_the_batch_that_fits(started, monkeypatch):
    quicken = module.quicken
    gpu = FakeGpu(monkeypatch, torch, mib=1024, fixed=100, per_image=2)
    monkeypatch.setattr(module, "quicken", lambda net: (quicken(net), net.register_forward_pre_hook(
        lambda net, images: gpu.forward(len(images[0])))))  # fmt: skip
    with pytest.raises(GluontuneError) as error:
        started(batch_size_per_device=512)
    assert str(error.value) == (
        "cuda:0 (Fake, 1024 MiB): out of memory in a step of 512 images; 432 fit: use batch_size_per_device=432"
    )
    gpu.peak = 0
    session = started(batch_size_per_device=64)
    assert session.remarks() == ["cuda:0 (Fake, 1024 MiB): at most 228 MiB in tensors, 228 MiB held by PyTorch"]
    # Memory that grows faster than the images: the guess fails, and the next one is tried. Then: one image alone.
    gpu.forward = lambda images, usual=gpu.forward: usual(images * 4 if images > 32 else images)
    gpu.per_image, gpu.mib = 5, 1024
    with pytest.raises(GluontuneError, match="64 images; 40 fit"):
        session.steps(1)
    gpu.fixed, gpu.per_image = 1020, 3
    with pytest.raises(GluontuneError, match="64 images; 1 fit: use batch_size_per_device=1"):
        session.steps(1)
    gpu.fixed = 2000
    with pytest.raises(GluontuneError, match="not even one fits"):
        session.steps(1)


def test_tensors_of_two_devices_in_one_operator_are_refused_as_a_gpu_does(monkeypatch):
    FakeGpu(monkeypatch, torch, count=2)
    there, here = torch.ones(2).to("cuda:1"), torch.ones(2)
    assert (there + torch.tensor(1.0)).device == torch.device("cuda:1") and there.cpu().device == here.device
    assert (there.cpu() + here).numpy().tolist() == [2.0, 2.0]
    for wrong in (lambda: there + here, lambda: there + torch.ones(2, device="cuda:0"), there.numpy):
        with pytest.raises((RuntimeError, TypeError), match=r"same device|can't convert"):
            wrong()


CHOSEN = {"selective-backprop": {"start": 0.0, "end": 1.0, "keep": 0.25}}


@pytest.mark.parametrize(
    "changes",
    [
        {"hybridize": "hybridized", "methods": CHOSEN},
        {"methods": {"flip-validation": {"last": False}, "mixup": True}, "clip_global_norm": 0.5},
        {"optimizer": "muon", "learning_rate": 0.01, "methods": {"ema": {"decay": 0.9}}, "accumulate": 2},
        {"optimizer": "nadam", "learning_rate": 0.002, "accumulate": 3, "methods": {"lookahead": True}},
    ],
    ids=["chosen", "blended", "muon", "gathered"],
)
def test_a_gpu_trains_what_the_cpu_trains_and_goes_on_from_a_checkpoint(started, monkeypatch, tmp_path, changes):
    """All arrays are where an operator wants them, also those that a checkpoint brought back."""
    changes = {"net": "sigmoid_100", **changes}
    cpu = started(**changes, devices="cpu")
    want = [cpu.steps(4)["loss"], cpu.validate(), cpu.steps(3)["loss"]]
    FakeGpu(monkeypatch, torch)
    gpu = started(**changes)
    gpu.writer = Writer(str(tmp_path), keep=1)
    seen = [gpu.steps(4)["loss"], gpu.validate()]
    written = gpu.checkpoint({"recipe": gpu.recipe.to_dict()}, wait=True)["written"]
    gpu.reset()
    gpu.restore(written)
    assert {str(value.device) for value in gpu.weights(True).values()} == {"cuda:0"}
    assert [seen[0], gpu.steps(3)["loss"]] == pytest.approx([want[0], want[2]], rel=1e-5)
    assert (seen[1]["accuracy"], seen[1]["flipped"]) == (want[1]["accuracy"], want[1]["flipped"])
    gpu.restore(written, epoch=1)  # as after a change of the number of ranks
    assert gpu.progress.epoch == 1 and gpu.gathered == 0 and gpu.steps(1)["samples"] == 64
    other = started(**{**changes, "optimizer": "sgd", "methods": {}, "accumulate": 1})
    with pytest.raises(GluontuneError, match=r"of the optimizer '.*', this run has 'sgd'"):
        other.restore(written)


def test_parameters_that_are_not_trained_stay_on_the_gpu(started, monkeypatch):
    FakeGpu(monkeypatch, torch)
    job = copy.deepcopy(export("mlp"))
    job.frozen = [job.layers[0][0]]
    monkeypatch.setitem(globals(), "export", lambda net: job)
    opened = []
    session = module.TorchSession(gt.Recipe(**{**PLAIN, "net": "mlp"}), job=job)
    session.build(lambda: opened.append(session.phase))
    try:
        still = [p for p in session.net.parameters() if not p.requires_grad]
        before = still[0].clone()
        session.steps(2)
        assert opened == ["opening the data"] and len(still) == 1 and torch.equal(still[0], before)
        assert len(session.optimizer.parameters) == len(list(session.net.parameters())) - 1
    finally:
        session.close()


def test_ranks_of_a_machine_meet_by_nccl_each_on_its_gpu(started, monkeypatch):
    gpu, met = FakeGpu(monkeypatch, torch, count=4), []

    class Together(torch.nn.Module):
        def __init__(self, net, **how):
            super().__init__()
            self.net = net

        def forward(self, images):
            return self.net(images)

    there = SimpleNamespace(is_initialized=lambda: True, destroy_process_group=lambda: met.append("left"))
    there.init_process_group = lambda way, **how: met.append((way, how["rank"], how["world_size"]))
    monkeypatch.setattr(torch, "distributed", there)
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", Together)
    monkeypatch.setitem(os.environ, "GLUONTUNE_DDP_MEETING", "file:///nowhere")
    session = started(1, 2, devices="gpu:3,2", engine="ddp", num_devices=2)
    assert session.device.place == "cuda:2" and ("set_device", "cuda:2") in gpu.calls
    assert session.news == [], "rank 0 says it"
    session.steps(1)
    session.close()
    assert met == [("nccl", 1, 2), "left"]


def test_a_gpus_random_stream_is_in_the_checkpoint(started, monkeypatch, tmp_path):
    gpu = FakeGpu(monkeypatch, torch)
    session = started()
    session.writer = Writer(str(tmp_path), keep=1)
    session.steps(2)
    written = session.checkpoint({"recipe": session.recipe.to_dict()}, wait=True)["written"]
    session.restore(written)
    assert gpu.named("set_rng_state") == [("set_rng_state", "uint8", [7, 7, 7, 7], "cuda:0")]


@pytest.mark.parametrize("place", ["cpu", "gpu"])
def test_float16_skips_steps_that_overflow_and_counts_them(started, monkeypatch, tmp_path, place):
    if place == "gpu":
        FakeGpu(monkeypatch, torch)
    session = started(**SMALL_HALF, devices=place, clip_global_norm=100.0)
    session.writer = Writer(str(tmp_path), keep=1)
    assert session.scaler.scale_value == 2.0**16
    session.steps(2)
    moved, updates = {p: session.to_host(v) for p, v in session.weights(False).items()}, session.optimizer.num_update
    session.scaler.scale_value = 2.0**40  # beyond float16
    session.steps(3)
    assert session.scaler.skipped_steps >= 3 and session.scaler.scale_value == 2.0**37
    assert session.optimizer.num_update == updates, "the schedule waits, as on MXNet's engine"
    assert all(np.array_equal(session.to_host(v), moved[p]) for p, v in session.weights(False).items())
    assert session.remarks()[0].startswith(f"float16: {session.scaler.skipped_steps} steps skipped")
    written = session.checkpoint({"recipe": session.recipe.to_dict()}, wait=True)["written"]
    session.reset()
    assert session.scaler.skipped_steps == 0
    session.restore(written)
    assert session.scaler.scale_value == 2.0**37


def test_float16_that_always_overflows_has_diverged(started, monkeypatch):
    session = started(**SMALL_HALF)
    session.scaler.scale_value = 1.0
    monkeypatch.setattr(torch, "_foreach_norm", lambda grads, *_: [torch.tensor(float("inf"))])
    with pytest.raises(GluontuneError, match="10 steps in a row although the loss scale is 1"):
        session.steps(10)


def test_float16_learns_as_float32(started):
    losses = []
    for dtype in ("float32", "float16"):
        session = started(**{**SMALL_HALF, "dtype": dtype}, clip_global_norm=1.0)
        losses.append([session.steps(10)["loss"] for _ in range(2)])
        assert session.optimizer.num_update >= 18
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
