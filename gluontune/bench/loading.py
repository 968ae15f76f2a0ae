"""``gluontune bench loading``: loaders over the same record file, ours and their peers'.

All make batches of random-resized crops, half of them mirrored, as uint8, from shuffled records that lie in
the page cache: NHWC, or NCHW where that is what the peer makes. Data of the crops' own size are padded by 4
and cropped instead. Nobody normalizes. Record files for it, of any photographs:

    gluontune pack photos.lst full.rec --root photos
    gluontune pack photos.lst p256.rec --root photos --resize 256 --quality 90 --format jpg
    gluontune pack photos.lst raw256.rec --root photos --resize 256 --format raw
    gluontune bench loading p256.rec full.rec raw256.rec --size 224

A list may name a file many times, so that few photographs make enough batches for an epoch.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Union

from gluontune.bench import outcome
from gluontune.bench.contest import LIMIT, OURS, Entrant, hold
from gluontune.bench.places import peer_python
from gluontune.bench.selecting import selected
from gluontune.errors import UsageError
from gluontune.journal import Journal
from gluontune.loading import ResidentLoader, from_records
from gluontune.runtime import usable_cores

__all__ = ["entrants", "kind_of", "run", "show"]

PathLike = Union[str, "os.PathLike[str]"]
CROP, PAD_CROP = "random-resized-crop-flip", "pad-crop-flip"
HOME = "gluontune.bench."


def run(
    files: Sequence[PathLike],
    *,
    size: int = 224,
    batch_size: int = 64,
    augment: str = "auto",
    workers: int | None = None,
    rounds: int = 9,
    seconds: float = 1.0,
    only: Sequence[str] | None = None,
    peers: PathLike | None = None,
    out: Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure every loader over each file.

    Args:
        files: record files of JPEG images, or of raw pixels.
        size: side of the crops, pixels.
        batch_size: images in a batch.
        augment: ``random-resized-crop-flip``, ``pad-crop-flip``, or ``auto``: the latter where all images
            have the crops' size.
        workers: most threads or processes of a contender; None: the usable cores.
        rounds, seconds, say: see ``contest.hold``.
        only: keep the contenders whose name holds one of these.
        peers: the peers' environment; see ``places.peer_python``.
        out: a journal beside it keeps each round and each file. resume: go on with what it holds.

    Returns:
        the document of ``outcome.combine``, a part for each file.

    Raises:
        UsageError: nothing is left to measure, or an augmentation that not all have.
        GluontuneError: a file cannot be read.
    """
    if augment not in ("auto", CROP, PAD_CROP):
        raise UsageError(f"augment {augment!r}: choose auto, {CROP} or {PAD_CROP}")
    parts: dict[str, dict[str, Any]] = {}
    most = workers or usable_cores()
    given = {
        "size": size, "batch_size": batch_size, "augment": augment, "workers": most, "rounds": rounds,
        "seconds": seconds, "only": list(only or ()),
    }  # fmt: skip
    with Journal(out, "bench loading", given, resume=resume) as journal:
        for file in files:
            path = os.path.abspath(os.fspath(file))
            name = Path(path).name if Path(path).name not in parts else path
            one = partial(
                _run_one, path, size, batch_size, augment, most, rounds, seconds, only, peers, say, journal
            )
            parts[name] = journal.piece(path, one)
    return outcome.combine(parts)


def _run_one(
    path: str,
    size: int,
    batch_size: int,
    augment: str,
    workers: int,
    rounds: int,
    seconds: float,
    only: Sequence[str] | None,
    peers: PathLike | None,
    say: Callable[[str], None] | None,
    journal: Journal,
) -> dict[str, Any]:
    tell, name = say or (lambda line: None), Path(path).name
    kind, own = kind_of(path, size)
    chosen = (PAD_CROP if own else CROP) if augment == "auto" else augment
    with tempfile.TemporaryDirectory(prefix="gluontune-bench-") as folder:
        field = entrants(path, kind, size, batch_size, chosen, workers, seconds, peer_python(peers), folder)
        names = selected((e.name for e in field), only)
        kept = [e for e in field if e.name in names]
        done = hold(
            kept,
            rounds=rounds,
            seconds=seconds,
            say=lambda line: tell(f"{name}: {line}"),
            journal=journal,
            key=path,
        )
    conditions = {
        "file": name,
        "bytes": os.path.getsize(path),
        "images": kind,
        "records": len(from_records(path)),
        "size": size,
        "batch_size": batch_size,
        "augment": chosen,
        "most_workers": workers,
        "rounds": rounds,
        "seconds": seconds,
    }
    return outcome.document(done, conditions=conditions, limit="decode")


def kind_of(path: PathLike, size: int) -> tuple[str, bool]:
    """What the images are (``jpeg``, ``raw`` or ``other``), and whether a sample of them all is ``size`` square.

    Raises:
        GluontuneError: no such file, or no records.
    """
    split = from_records(path)
    head = bytes(memoryview(split.read(0))[:6])
    kind = "jpeg" if head[:2] == b"\xff\xd8" else "raw" if head == b"\x93NUMPY" else "other"
    places = range(0, len(split), max(1, len(split) // 16))
    return kind, all(split.decode(i).shape[:2] == (size, size) for i in places)


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


def show(found: dict[str, Any], console: Any) -> None:
    """Print a table for each file."""
    outcome.show(found, console)
