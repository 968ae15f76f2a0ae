"""Run airbench94 or airbench94_muon (Jordan, 2024), written for one CUDA GPU, unchanged on a CPU.

``python benchmarks/airbench_on_cpu.py PATH [--compile] [--float32]``: PATH is the script, from
github.com/KellerJordan/cifar10-airbench. Its calls to CUDA are taken away, float16 becomes bfloat16 (a CPU's half), the
images come from gluontune's cifar10, and one run is made in place of a warm-up and 200. Net, rates, augmentation,
optimizer, epochs, clock and validation rule stay the script's. After each validation a line of JSON is printed, for
``gluontune tta --against-peer``: seconds (the script's own clock), accuracy, and at the end flipped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gluontune import datasets


class _Event:
    """``torch.cuda.Event`` by the wall clock."""

    def __init__(self, enable_timing: bool = False):
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: _Event) -> float:
        return 1000 * (other.at - self.at)


class _Normalize:
    """``torchvision.transforms.Normalize`` of batches."""

    def __init__(self, mean: Any, std: Any):
        self.mean, self.std = (torch.as_tensor(value).view(-1, 1, 1) for value in (mean, std))

    def __call__(self, images: Any) -> Any:
        return (images - self.mean.to(images.dtype)) / self.std.to(images.dtype)


def source_for_cpu(code: str, half: str, compiled: bool) -> str:
    """The script without CUDA, its float16 as ``half``.

    >>> source_for_cpu('net = Net().cuda().half()', "bfloat16", False)
    'net = Net().bfloat16()'
    """
    changes = {
        r"\.cuda\(\)": "",
        r'torch\.device\("cuda"\)': 'torch.device("cpu")',
        r"\.half\(\)": f".{half}()",
        r"torch\.cuda\.synchronize\(\)": "None",
        r"torch\.cuda\.Event": "_Event",
    }
    if not compiled:
        changes[r"@torch\.compile\b[^\n]*"] = ""
    for pattern, new in changes.items():
        code = re.sub(pattern, new, code)
    return code


def _put_images(name: str, folder: Path) -> None:
    """Write the data set for the script: cifar10/train.pt and cifar10/test.pt."""
    data = datasets.open(name)
    (folder / "cifar10").mkdir()
    for part, split in (("train", data.train), ("test", data.test)):
        images = np.stack([split.decode(index) for index in range(len(split))])
        torch.save(
            {"images": torch.from_numpy(images), "labels": torch.tensor(split.labels), "classes": list(data.classes)},
            folder / "cifar10" / f"{part}.pt",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("--compile", action="store_true", help="As the script does on a GPU; slower on most CPUs.")
    parser.add_argument("--float32", dest="half", action="store_const", const="float", default="bfloat16")
    parser.add_argument("--dataset", default="cifar10", help="Of gluontune: gluontune data list.")
    given = parser.parse_args()
    code = source_for_cpu(given.script.read_text(encoding="utf-8"), given.half, given.compile)
    vision, transforms = types.ModuleType("torchvision"), types.ModuleType("torchvision.transforms")
    transforms.Normalize, vision.transforms = _Normalize, transforms  # type: ignore[attr-defined]
    sys.modules.update({"torchvision": vision, "torchvision.transforms": transforms})
    torch.manual_seed(int(os.environ.get("GLUONTUNE_SEED", "0")))

    script: dict[str, Any] = {"__name__": "airbench", "_Event": _Event}
    sys.argv = [str(given.script.absolute())]
    exec(compile(code, str(given.script), "exec"), script)

    def print_epoch(variables: dict[str, Any], is_final_entry: bool) -> None:
        seen = {"seconds": variables["time_seconds"], "accuracy": variables["val_acc"]}
        if is_final_entry:
            seen["flipped"] = variables["tta_val_acc"]
        print(json.dumps(seen), flush=True)

    script["print_training_details"] = print_epoch
    with tempfile.TemporaryDirectory() as folder:
        _put_images(given.dataset, Path(folder))
        os.chdir(folder)
        model = script["CifarNet"]().to(memory_format=torch.channels_last)
        if given.compile:
            model.compile(mode="max-autotune")
        script["main"](0, model)


if __name__ == "__main__":
    main()
