"""Batches as PyTorch tensors: the same memory, the same bytes after a resume, and records for its own DataLoader."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from fake_gpu import FakeGpu

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.loading import RecordDataset, TorchLoader, build
from gluontune.records import RecordWriter

torch = pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "a.rec"
    rng = np.random.default_rng(0)
    with RecordWriter(path) as writer:
        for i in range(53):
            pixels = cv2.resize(rng.integers(0, 255, (6, 6, 3), np.uint8), (40, 36))
            writer.write(cv2.imencode(".jpg", pixels)[1].tobytes(), label=i)
    return path


class Split:
    def __init__(self, path):
        self.data = RecordDataset(path, kind="bytes")
        self.labels = np.arange(len(self.data))

    def __len__(self):
        return len(self.data)

    def read(self, i):
        return self.data[i][0]


def make(packed, name="threaded", **more):
    settings = {"batch_size": 8, "image_shape": (24, 24, 3), "augment": "pad-crop-flip", "shuffle": True, "seed": 3}
    return build(name, Split(packed), **{**settings, "framework": "torch", "num_workers": 2, **more})


def test_tensors_hold_the_numpy_loaders_pixels_without_a_copy(packed):
    with make(packed) as tensors, make(packed, framework="numpy") as arrays:
        assert len(tensors) == len(arrays) == 6
        for (images, labels), (pixels, classes) in zip(tensors, arrays):
            assert images.dtype is torch.uint8 and images.shape == (8, 3, 24, 24)
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), pixels)
            assert labels.dtype is torch.int64 and labels.tolist() == classes.tolist()
            known = {array.ctypes.data for array in tensors.loader.pool._arrays}
            assert images.data_ptr() in known


def test_a_batch_that_is_held_is_never_written_over(packed):
    with make(packed, prefetch=1) as loader:
        held = [(images, images.clone()) for images, _ in loader for _ in range(1)]
        for images, before in held:
            assert torch.equal(images, before)


@pytest.mark.parametrize("name", ["threaded", "resident"])
@pytest.mark.parametrize("done", [0, 1, 4, 6])
def test_resumed_in_mid_epoch_gives_the_same_batches_byte_for_byte(packed, name, done):
    with make(packed, name) as loader:
        loader.set_epoch(5)
        batches = iter(loader)
        for _ in range(done):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [(i.numpy().tobytes(), y.tolist()) for i, y in batches]
        rest += [(i.numpy().tobytes(), y.tolist()) for i, y in loader]  # epoch 6
    assert state["batch"] == done
    with make(packed, name, num_workers=1) as other:
        other.load_state_dict(state)
        other.set_epoch(5)
        again = [(i.numpy().tobytes(), y.tolist()) for i, y in other]
        again += [(i.numpy().tobytes(), y.tolist()) for i, y in other]
    assert len(again) == 12 - done and again == rest


@pytest.fixture
def gpu(monkeypatch):
    yield FakeGpu(monkeypatch, torch)
    FakeGpu.leave()


def test_a_gpus_batches_go_through_pinned_memory_ahead_of_time(packed, gpu):
    with make(packed) as plain:
        wanted = [(images.clone(), labels) for images, labels in plain]
    with make(packed, device="cuda") as loader:
        batches = iter(loader)
        first = next(batches)
        one = [("pin", "uint8"), ("pin", "int64")]
        one += [("move", dtype, "cuda", "side", "non_blocking") for dtype in ("uint8", "int64")]
        taken = [("wait", "default", "side"), ("record", "uint8", "default"), ("record", "int64", "default")]
        assert gpu.calls == 3 * one + taken, "the batch in use and two more, pixels as bytes on a stream of their own"
        assert loader.state_dict()["batch"] == 1, "what is on its way does not count"
        made = [first, *batches]
    assert len(made) == 6 and len(gpu.named("wait")) == 6
    for (images, labels), (others, theirs) in zip(wanted, made):
        assert others.device == theirs.device == torch.device("cuda")
        assert torch.equal(images, others.cpu()) and torch.equal(labels, theirs.cpu())


def test_epochs_go_on_by_themselves_and_set_epoch_says_which(packed):
    with make(packed) as loader:
        first, second = ([y.tolist() for _, y in loader] for _ in range(2))
        assert first != second and len(first) == len(second) == 6
        loader.set_epoch(0)
        assert [y.tolist() for _, y in loader] == first
        with pytest.raises(UsageError, match="epoch=-1"):
            loader.set_epoch(-1)


def test_ranks_share_the_samples(packed):
    seen = []
    for rank in range(2):
        with make(packed, rank=rank, world_size=2, batch_size=13) as loader:
            seen.append({k for _, y in loader for k in y.tolist()})
    assert len(seen[0]) == len(seen[1]) == 26 and not seen[0] & seen[1]


def test_another_loaders_state_is_refused(packed):
    with make(packed) as loader, make(packed, seed=4) as other, pytest.raises(UsageError, match="seed"):
        other.load_state_dict(loader.state_dict())


def test_normalized_is_torchvisions_formula(packed):
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    with make(packed, normalize=True, mean=mean, std=std) as loader, make(packed) as plain:
        (images, _), (pixels, _) = next(iter(loader)), next(iter(plain))
    wanted = (pixels.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert images.dtype is torch.float32 and images.is_contiguous(memory_format=torch.channels_last)
    assert (images - wanted).abs().max() < 1e-5


def test_bad_arguments_are_one_line(packed):
    with pytest.raises(UsageError, match="NDArrays"):
        make(packed, "gluon")
    with pytest.raises(UsageError, match="mean and std"):
        make(packed, normalize=True)
    with pytest.raises(UsageError, match="framework='torch'"):
        make(packed, framework="numpy", device="cpu")
    with pytest.raises(UsageError, match="tensorflow"):
        make(packed, framework="tensorflow")
    with make(packed) as loader, pytest.raises(UsageError, match="ahead=0"):
        TorchLoader(loader.loader, ahead=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_pytorchs_own_dataloader_reads_right_records(packed, workers):
    dataset = RecordDataset(packed, transform=lambda image: image.float().mean())
    wanted = [float(RecordDataset(packed)[i][0].float().mean()) for i in range(len(dataset))]
    loader = torch.utils.data.DataLoader(dataset, batch_size=10, num_workers=workers, shuffle=True)
    seen = {int(label): float(mean) for means, labels in loader for mean, label in zip(means, labels)}
    assert seen == {i: pytest.approx(mean) for i, mean in enumerate(wanted)}


def _wrong(dataset, wanted, seed):
    order = np.random.default_rng(seed).integers(0, len(wanted), 400).tolist()
    return sum(dataset[i] != wanted[i] for i in order)


def test_threads_and_forked_processes_read_one_data_set_at_once(packed):
    dataset = RecordDataset(packed, kind="bytes")
    wanted = [dataset[i] for i in range(len(dataset))]
    with ThreadPoolExecutor(4) as threads, ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as processes:
        tasks = [processes.submit(_wrong, dataset, wanted, seed) for seed in range(2)]
        tasks += [threads.submit(_wrong, dataset, wanted, seed) for seed in range(4)]
        assert [task.result(timeout=60) for task in tasks] == [0] * 6


def test_a_record_dataset_is_pickled_indexed_and_complains(packed, tmp_path):
    dataset = pickle.loads(pickle.dumps(RecordDataset(packed, kind="numpy")))
    assert np.array_equal(dataset[-1][0], copy.deepcopy(dataset)[52][0]) and dataset[52][1] == 52
    with pytest.raises(IndexError, match="53"):
        dataset[53]
    with pytest.raises(UsageError, match="pil"):
        RecordDataset(packed, kind="pil")
    with RecordWriter(tmp_path / "b.rec") as writer:
        writer.write(b"no image", label=[1, 2])
    with pytest.raises(GluontuneError, match="record 0"):
        RecordDataset(tmp_path / "b.rec")[0]
    assert RecordDataset(tmp_path / "b.rec", kind="bytes")[0][1].tolist() == [1, 2]
