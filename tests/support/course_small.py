"""Lessons made smaller than quick, where tests want to see them run, not what they measure."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "notebooks"
_IMAGES = "synthetic:train=160,test=20,size=96"
_OWN = {
    "02_multi_worker": {"dataset": _IMAGES, "batch_size_per_device": 16},
    "03_recordio": {"dataset": _IMAGES, "batch_size_per_device": 16, "quick_samples": 100},
    "04_hybridize": {"batch_size_per_device": 16},
    "05_float16": {"batch_size_per_device": 16},
    "06_large_batch": {"epochs": 1, "batch_size_per_device": 8},
    "07_multi_gpu": {"epochs": 1, "batch_size_per_device": 16},
    "08_scaling": {"epochs": 1, "batch_size_per_device": 16},
    "09_descent": {"epochs": 1},
    "10_optimizers": {"epochs": 1},
    "11_lr_schedules": {"epochs": 1},
    "12_composing": {"epochs": 2, "batch_size_per_device": 8, "repeats": 2},
    "13_inference": {"batch_size_per_device": 16},
    "14_assessment": {"epochs": 1, "my_script": "solution"},
    "15_modern_engine": {"epochs": 1, "batch_size_per_device": 16},
    "99_your_own_project": {"epochs": 1, "batch_size_per_device": 16},
}


def small(name: str) -> dict[str, object]:
    """The parameters that a lesson has of those that make it small."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    wanted = {"quick": True, "quick_samples": 512, **_OWN.get(name, {})}
    return {key: value for key, value in wanted.items() if f"\n{key} = " in text}
