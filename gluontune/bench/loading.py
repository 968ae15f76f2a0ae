"""``gluontune bench loading``: loaders over the same record file, ours and their peers'.

All make batches of random-resized crops, half of them mirrored, as uint8, from shuffled records that lie in
the page cache: NHWC, or NCHW where that is what the peer makes. Data of the crops' own size are padded by 4
and cropped instead. Nobody normalizes. Record files for it, of any photographs:

    gluontune pack photos.lst full.rec --root photos
    gluontune pack photos.lst p256.rec --root photos --resize 256 --quality 90 --format jpg
    gluontune pack photos.lst raw256.rec --root photos --resize 256 --format raw
    gluontune bench loading p256.rec full.rec raw256.rec --size 224
    gluontune bench loading detection.rec --boxes --size 300

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
from gluontune.bench.contest import hold
from gluontune.bench.loading_field import CROP, PAD_CROP, STRETCH, entrants, with_boxes
from gluontune.bench.places import peer_python
from gluontune.bench.selecting import selected
from gluontune.codec.image import facts
from gluontune.errors import GluontuneError, UsageError
from gluontune.journal import Journal
from gluontune.records import RecordReader
from gluontune.runtime import usable_cores

__all__ = ["entrants", "kind_of", "run", "show"]

PathLike = Union[str, "os.PathLike[str]"]


def run(
    files: Sequence[PathLike],
    *,
    size: int = 224,
    batch_size: int = 64,
    augment: str = "auto",
    boxes: bool = False,
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
        boxes: the files are detection records: images are stretched to the size and half of them mirrored, with
            their boxes; ours against gluon-cv's.
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
    if boxes and augment != "auto":
        raise UsageError(f"augment {augment!r}: with --boxes it is {STRETCH}")
    parts: dict[str, dict[str, Any]] = {}
    most = workers or usable_cores()
    given = {
        "size": size, "batch_size": batch_size, "augment": augment, "workers": most, "rounds": rounds,
        "seconds": seconds, "only": list(only or ()), **({"boxes": True} if boxes else {}),
    }  # fmt: skip
    with Journal(out, "bench loading", given, resume=resume) as journal:
        for file in files:
            path = os.path.abspath(os.fspath(file))
            name = Path(path).name if Path(path).name not in parts else path
            one = partial(
                _run_one, path, size, batch_size, augment, boxes, most, rounds, seconds, only, peers, say, journal
            )
            parts[name] = journal.piece(path, one)
    return outcome.combine(parts)


def _run_one(
    path: str,
    size: int,
    batch_size: int,
    augment: str,
    boxes: bool,
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
    with RecordReader(path) as reader:
        records = len(reader)
    chosen = STRETCH if boxes else (PAD_CROP if own else CROP) if augment == "auto" else augment
    with tempfile.TemporaryDirectory(prefix="gluontune-bench-") as folder:
        if boxes:
            field = with_boxes(path, size, batch_size, workers)
        else:
            field = entrants(path, kind, size, batch_size, chosen, workers, seconds, peer_python(peers), folder)
        names = selected((e.name for e in field), only)
        kept = [e for e in field if e.name in names]
        done = hold(
            kept, rounds=rounds, seconds=seconds, say=lambda line: tell(f"{name}: {line}"), journal=journal, key=path
        )
    conditions = {
        "file": name,
        "bytes": os.path.getsize(path),
        "images": kind,
        "records": records,
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
    with RecordReader(path) as reader:
        if not len(reader):
            raise GluontuneError(f"{os.fspath(path)}: the file holds no records")
        head = bytes(reader.payload(0)[:6])
        kind = "jpeg" if head[:2] == b"\xff\xd8" else "raw" if head == b"\x93NUMPY" else "other"
        seen = [facts(reader.payload(i)) for i in range(0, len(reader), max(1, len(reader) // 16))]
    if None in seen:
        raise GluontuneError(f"{os.fspath(path)}: a record is no image; `gluontune verify` lists all damage")
    return kind, all(one is not None and one[:2] == (size, size) for one in seen)


def show(found: dict[str, Any], console: Any) -> None:
    """Print a table for each file."""
    outcome.show(found, console)
