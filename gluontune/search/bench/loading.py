"""``gluontune bench loading``: loaders over the same record file, ours and their peers'.

All make batches of random-resized crops, half of them mirrored, as uint8, from shuffled records in the page
cache: NHWC, or NCHW if the peer makes that. Data of the crops' size are padded by 4 and cropped instead. No
contender normalizes. Record files for it, of any photographs (a list may name a file many times):

    gluontune pack photos.lst p256.rec --root photos --resize 256 --quality 90 --format jpg
    gluontune pack photos.lst raw256.rec --root photos --resize 256 --format raw
    gluontune bench loading p256.rec raw256.rec --size 224
    gluontune bench loading detection.rec --boxes --size 300
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Union

from gluontune.codec.image import facts
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.journal import Journal
from gluontune.loading import ResidentLoader, from_records
from gluontune.records import RecordReader
from gluontune.runtime import usable_cores
from gluontune.search.bench.benchmark import Terms, combine, document, show as show
from gluontune.search.bench.contender import LIMIT, OURS, Entrant, peer_python

PathLike = Union[str, "os.PathLike[str]"]
CROP, PAD_CROP, STRETCH = "random-resized-crop-flip", "pad-crop-flip", "stretch-flip"
HOME, GLUON = "gluontune.search.bench.", "Gluon DataLoader"


def run(
    files: Sequence[PathLike], *, size: int = 224, batch_size: int = 64, augment: str = "auto", boxes: bool = False,
    workers: int | None = None, **terms: Any,
) -> dict[str, Any]:  # fmt: skip
    """Measure every loader over each file, and return the document of :func:`combine`, a part for each.

    ``augment="auto"`` is ``pad-crop-flip`` if all images have the ``size``; ``boxes``: the files are detection records;
    ``terms`` are of :class:`Terms`.
    """
    if augment not in ("auto", CROP, PAD_CROP):
        raise UsageError(f"augment {augment!r}: choose auto, {CROP} or {PAD_CROP}")
    if boxes and augment != "auto":
        raise UsageError(f"augment {augment!r}: with --boxes it is {STRETCH}")
    parts: dict[str, dict[str, Any]] = {}
    how, sizes = Terms(**terms), {"size": size, "batch_size": batch_size, "augment": augment}
    given = {**sizes, "workers": workers or usable_cores(), **how.pace, "only": list(how.only or ())}
    given.update({"boxes": True} if boxes else {})
    with how.journal("bench loading", given) as journal:
        for file in files:
            path = os.path.abspath(os.fspath(file))
            name = Path(path).name if Path(path).name not in parts else path
            parts[name] = journal.piece(path, partial(_run_one, path, given, how, journal))
    return combine(parts)


def _run_one(path: str, given: Mapping[str, Any], how: Terms, journal: Journal) -> dict[str, Any]:
    size, batch_size, workers, boxes = given["size"], given["batch_size"], given["workers"], "boxes" in given
    (kind, fits), name, augment = kind_of(path, size), Path(path).name, given["augment"]
    with RecordReader(path) as reader:
        records = len(reader)
    if augment == "auto":
        augment = STRETCH if boxes else PAD_CROP if fits else CROP
    with tempfile.TemporaryDirectory(prefix="gluontune-bench-") as folder:
        if boxes:
            field = with_boxes(path, size, batch_size, workers)
        else:
            python = peer_python(how.peers)
            field = entrants(path, kind, size, batch_size, augment, workers, how.seconds, python, folder)
        done = how.contest(how.kept(field), say=partial(how.tell, of=name), journal=journal, key=path, **how.pace)
    conditions = {
        "file": name, "bytes": os.path.getsize(path), "images": kind, "records": records, "size": size,
        "batch_size": batch_size, "augment": augment, "most_workers": workers, **how.pace,
    }  # fmt: skip
    return document(done, conditions=conditions, limit="decode")


def kind_of(path: PathLike, size: int) -> tuple[str, bool]:
    """The images' kind (``jpeg``, ``raw`` or ``other``), and whether all of a sample are ``size`` square."""
    with RecordReader(path) as reader:
        if not len(reader):
            raise GluontuneError(f"{os.fspath(path)}: the file holds no records")
        head = bytes(reader.payload(0)[:6])
        kind = "jpeg" if head[:2] == b"\xff\xd8" else "raw" if head == b"\x93NUMPY" else "other"
        seen = [facts(reader.payload(i)) for i in range(0, len(reader), max(1, len(reader) // 16))]
    if None in seen:
        raise GluontuneError(f"{os.fspath(path)}: a record is no image; `gluontune verify` lists all damage")
    return kind, all(one is not None and one[:2] == (size, size) for one in seen)


Row = tuple[str, str, str, dict[str, Any], str]  # name, peer, module and function, settings, note


def entrants(
    path: str, kind: str, size: int, batch_size: int, augment: str, workers: int, seconds: float, python: Path,
    folder: str,
) -> list[Entrant]:  # fmt: skip
    """The entrants for one file, each in its fast configuration. ``folder`` gets copies of the data."""
    data = {"path": path, "size": size, "batch_size": batch_size, "augment": augment}
    field = []
    for name, peer, work, how, note in [*_ours(data, kind, workers), *_peers(kind, workers, folder)]:
        where = None if work.startswith("ours") else python
        field.append(Entrant(name, peer, f"{HOME}_loaders_{work}", {**data, **how}, where, note=note))
    if kind != "raw":
        limit = {"path": path, "seconds": seconds, "workers": workers}
        name = f"decoding alone, {workers} threads"
        field.append(Entrant(f"{name} (OpenCV)", LIMIT, f"{HOME}_loaders_ours:limit", limit, slices="once"))
        if kind == "jpeg":
            work = f"{HOME}_loaders_torch:limit"
            field.append(Entrant(f"{name} (simplejpeg)", LIMIT, work, limit, python, slices="once"))
    return field


def _ours(data: dict[str, Any], kind: str, workers: int) -> list[Row]:
    """Our loaders and MXNet's."""
    name, how = f"gluontune threaded, {workers} threads", {"num_workers": workers, "scaled": True}
    unscaled = {**how, "scaled": False}
    if kind == "raw":
        return [(name, OURS, "ours:threaded", unscaled, "raw pixels")]
    if data["augment"] == CROP:
        note = "scaled decoding where the crop is larger than the result"
        rows: list[Row] = [
            (name, OURS, "ours:threaded", how, note),
            (f"{name}, unscaled", OURS, "ours:threaded", unscaled, "every pixel of the crop is decoded"),
        ]
    else:
        rows = [(name, OURS, "ours:threaded", how, "")]
        if ResidentLoader.fits(from_records(data["path"]), (data["size"], data["size"], 3), PAD_CROP):
            rows.append(("gluontune resident", OURS, "ours:resident", {}, "decoded once, before the clock starts"))
    for n in sorted({0, 1, workers}):
        rows.append((f"{GLUON}, {n} workers", GLUON, "ours:dataloader", {"num_workers": n}, "uint8 NHWC"))
    for n in (workers, 2 * workers):
        name = f"ImageRecordIter, {n} threads"
        rows.append((name, "ImageRecordIter", "ours:recorditer", {"preprocess_threads": n}, "uint8 NCHW"))
    return rows


def _peers(kind: str, workers: int, folder: str) -> list[Row]:
    raw, made, torch = kind == "raw", "uint8 NHWC, ", "PyTorch DataLoader"
    stored: dict[str, Any] = {"num_workers": workers, "folder": folder}
    rows: list[Row] = []
    for threads, prefetch in () if raw else ((workers, 2), (workers + 1, 3)):
        how = {"num_threads": threads, "prefetch": prefetch}
        note = f"{made}the crop's region decoded, no antialiasing"
        rows.append((f"DALI CPU, {threads} threads, prefetch {prefetch}", "DALI", "native:dali", how, note))
    peer = f"FFCV {'raw pixels' if raw else 'JPEG'}"
    note = "the same pixels in its format" if raw else "the same JPEG bytes in its format"
    rows.append((f"{peer}, {workers} threads", peer, "native:ffcv", {**stored, "raw": raw}, note))
    tried = [(count, "raw" if raw else "OpenCV") for count in sorted({0, 1, workers})]
    for count, decoder in [*tried, *([] if raw else [(workers, "Pillow")])]:
        note, by = f"{made}{'raw pixels, OpenCV' if raw else decoder}", {"num_workers": count, "decoder": decoder}
        rows.append((f"{torch}, {count} workers, {decoder}", torch, "torch:dataloader", by, note))
    if kind == "jpeg":
        tar, mds = (f"{made}the same JPEG bytes in {shards} shards, OpenCV" for shards in ("tar", "MDS"))
        decoding, both = {"num_threads": workers}, {"threads": workers, "processes": 0}
        processes = {"threads": 1, "processes": workers}
        region = f"{made}the crop's region decoded, OpenCV resizes"
        rows += [
            (f"WebDataset, {workers} workers", "WebDataset", "torch:webdataset", stored, tar),
            (f"MosaicML Streaming, {workers} workers", "MosaicML Streaming", "torch:streaming", stored, mds),
            (f"SPDL, {workers} threads", "SPDL", "native:spdl", decoding, f"{made}its decoder, FFmpeg's"),
            (f"Grain, {workers} threads", "Grain", "torch:grain", both, f"{made}OpenCV"),
            (f"Grain, {workers} processes", "Grain", "torch:grain", processes, f"{made}OpenCV"),
            (f"nvImageCodec CPU, {workers} threads", "nvImageCodec", "native:nvimagecodec", decoding, region),
        ]
    return rows


def with_boxes(path: str, size: int, batch_size: int, workers: int) -> list[Entrant]:
    """The entrants for detection records: images and boxes stretched to the size, half of them mirrored."""
    data, work = {"path": path, "size": size, "batch_size": batch_size}, f"{HOME}_loaders_ours:"
    note = "uint8 NHWC, boxes filled up with -1"
    mine, theirs = {**data, "num_workers": workers}, f"{note}: RecordFileDetection, its transforms of image and boxes"
    field = [Entrant(f"gluontune fields, {workers} threads", OURS, f"{work}our_boxes", mine, note=note)]
    for count in sorted({0, 1, workers}):
        how = {**data, "num_workers": count}
        field.append(Entrant(f"gluon-cv, {count} workers", "gluon-cv", f"{work}gluoncv_boxes", how, note=theirs))
    return field
