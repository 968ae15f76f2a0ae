"""The contenders of ``gluontune bench loading``: ours and the peers', each in the configuration that is fast for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gluontune.bench.contender import LIMIT, OURS, Entrant
from gluontune.loading import ResidentLoader, from_records

__all__ = ["CROP", "PAD_CROP", "STRETCH", "entrants", "with_boxes"]

CROP, PAD_CROP, STRETCH = "random-resized-crop-flip", "pad-crop-flip", "stretch-flip"
HOME = "gluontune.bench."


def entrants(
    path: str,
    kind: str,
    size: int,
    batch_size: int,
    augment: str,
    workers: int,
    seconds: float,
    python: Path,
    folder: str,
) -> list[Entrant]:
    """The field for one file. ``folder`` is where FFCV's copy of the data goes."""
    data = {"path": path, "size": size, "batch_size": batch_size, "augment": augment}
    raw = kind == "raw"
    field = _ours(data, raw, workers)
    if not raw:
        field += _mxnet(data, workers) + _dali(data, workers, python)
    field += _ffcv(data, raw, workers, python, folder) + _torch(data, raw, workers, python)
    if kind == "jpeg":
        field += _newer(data, workers, python, folder)
    if not raw:
        limit = {"path": path, "seconds": seconds, "workers": workers}
        name = f"decoding alone, {workers} threads"
        for library, where, module in (("OpenCV", None, "ours"), ("simplejpeg", python, "torch")):
            if library == "OpenCV" or kind == "jpeg":
                target = f"{HOME}_loaders_{module}:limit"
                field.append(Entrant(f"{name} ({library})", LIMIT, target, limit, where, slices="once"))
    return field


def _ours(data: dict[str, Any], raw: bool, workers: int) -> list[Entrant]:
    def threaded(scaled: bool, name: str, note: str) -> Entrant:
        settings = {**data, "num_workers": workers, "scaled": scaled}
        return Entrant(name, OURS, f"{HOME}_loaders_ours:threaded", settings, note=note)

    name = f"gluontune threaded, {workers} threads"
    if raw:
        return [threaded(False, name, "raw pixels")]
    if data["augment"] == CROP:
        return [
            threaded(True, name, "scaled decoding where the crop is larger than the result"),
            threaded(False, f"{name}, unscaled", "every pixel of the crop is decoded"),
        ]
    field = [threaded(True, name, "")]
    if ResidentLoader.fits(from_records(data["path"]), (data["size"], data["size"], 3), PAD_CROP):
        note = "decoded once, before the clock starts"
        field.append(Entrant("gluontune resident", OURS, f"{HOME}_loaders_ours:resident", data, note=note))
    return field


def _mxnet(data: dict[str, Any], workers: int) -> list[Entrant]:
    field = [
        Entrant(
            f"Gluon DataLoader, {count} workers",
            "Gluon DataLoader",
            f"{HOME}_loaders_mxnet:dataloader",
            {**data, "num_workers": count},
            note="uint8 NHWC",
        )
        for count in sorted({0, 1, workers})
    ]
    for count in (workers, 2 * workers):
        field.append(
            Entrant(
                f"ImageRecordIter, {count} threads",
                "ImageRecordIter",
                f"{HOME}_loaders_mxnet:recorditer",
                {**data, "preprocess_threads": count},
                note="uint8 NCHW",
            )
        )
    return field


def _dali(data: dict[str, Any], workers: int, python: Path) -> list[Entrant]:
    field = []
    for threads, prefetch in ((workers, 2), (workers + 1, 3)):
        settings = {**data, "num_threads": threads, "prefetch": prefetch, "fused": True}
        field.append(
            Entrant(
                f"DALI CPU, {threads} threads, prefetch {prefetch}",
                "DALI",
                f"{HOME}_loaders_dali:pipeline",
                settings,
                python,
                note="uint8 NHWC, the crop's region decoded, no antialiasing",
            )
        )
    return field


def _ffcv(data: dict[str, Any], raw: bool, workers: int, python: Path, folder: str) -> list[Entrant]:
    form = "raw pixels" if raw else "JPEG"
    settings = {**data, "num_workers": workers, "raw": raw, "folder": folder}
    note = "the same pixels in its format" if raw else "the same JPEG bytes in its format"
    return [
        Entrant(
            f"FFCV {form}, {workers} threads",
            f"FFCV {form}",
            f"{HOME}_loaders_ffcv:loader",
            settings,
            python,
            note=note,
        )
    ]


def _torch(data: dict[str, Any], raw: bool, workers: int, python: Path) -> list[Entrant]:
    tried = [(count, "raw" if raw else "OpenCV") for count in sorted({0, 1, workers})]
    tried += [] if raw else [(workers, "Pillow")]
    return [
        Entrant(
            f"PyTorch DataLoader, {count} workers, {decoder}",
            "PyTorch DataLoader",
            f"{HOME}_loaders_torch:dataloader",
            {**data, "num_workers": count, "decoder": decoder},
            python,
            note=f"uint8 NHWC, {decoder}" + (" pixels, OpenCV" if raw else ""),
        )
        for count, decoder in tried
    ]


def _newer(data: dict[str, Any], workers: int, python: Path, folder: str) -> list[Entrant]:
    """Loaders and decoders that came after PyTorch's; JPEG alone."""
    stored = {"num_workers": workers, "folder": folder}
    tar, mds = "the same JPEG bytes in tar shards, OpenCV", "the same JPEG bytes in MDS shards, OpenCV"
    rows: list[tuple[str, str, str, dict[str, Any], str]] = [
        (f"WebDataset, {workers} workers", "WebDataset", "webdataset", stored, tar),
        (f"MosaicML Streaming, {workers} workers", "MosaicML Streaming", "streaming", stored, mds),
        (f"SPDL, {workers} threads", "SPDL", "spdl", {"num_threads": workers}, "its decoder, FFmpeg's"),
        (f"Grain, {workers} threads", "Grain", "grain", {"threads": workers, "processes": 0}, "OpenCV"),
        (f"Grain, {workers} processes", "Grain", "grain", {"threads": 1, "processes": workers}, "OpenCV"),
        (f"nvImageCodec CPU, {workers} threads", "nvImageCodec", "nvimagecodec", {"num_threads": workers},
         "the crop's region decoded, OpenCV resizes"),
    ]  # fmt: skip
    return [
        Entrant(name, peer, f"{HOME}_loaders_{module}:loader", {**data, **own}, python, note=f"uint8 NHWC, {note}")
        for name, peer, module, own, note in rows
    ]


def with_boxes(path: str, size: int, batch_size: int, workers: int) -> list[Entrant]:
    """The field for detection records: images stretched to the size, half of them mirrored, boxes with them."""
    data = {"path": path, "size": size, "batch_size": batch_size}
    ours = Entrant(
        f"gluontune fields, {workers} threads",
        OURS,
        f"{HOME}_loaders_ours:boxes",
        {**data, "num_workers": workers},
        note="uint8 NHWC, boxes filled up with -1",
    )
    theirs = [
        Entrant(
            f"gluon-cv, {count} workers",
            "gluon-cv",
            f"{HOME}_loaders_mxnet:boxes",
            {**data, "num_workers": count},
            note="uint8 NHWC, boxes filled up with -1: RecordFileDetection, its transforms of image and boxes",
        )
        for count in sorted({0, 1, workers})
    ]
    return [ours, *theirs]
