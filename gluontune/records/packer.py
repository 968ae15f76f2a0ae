"""``pack``: images in class folders, a list or a table become one record file, or several shards."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Optional

from gluontune.codec import native
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import PathLike
from gluontune.records.blocks import BlockMaker, Skip
from gluontune.records.partial_file import PartialFile
from gluontune.records.sources import Item, Source, read_source, split_shards
from gluontune.records.tarshards import place_of
from gluontune.records.transform import Transform
from gluontune.runtime import usable_cores

Progress = Callable[[int, int], None]  # images done, images in all

BLOCK_BYTES = 2 << 20  # of source files in one block
SMALL_FILE = 32 << 10  # below it, Python and not the disk limits copying without the compiled codec
WORTH_PROCESSES = 4000  # images; fewer are packed before an interpreter starts


@dataclass
class PackReport:
    """The result of :func:`pack`.

    Args:
        packed: records in the files, those of a resumed run included.
        skipped: ``Skip``s: skipped images, with the reason.
        outputs: the files, in order.
        incomplete: ``Skip``s: images packed by this run with incomplete or damaged data, which decoders fill with grey;
            only the compiled codec detects them.
        converted: images packed by this run whose bytes differ from their file's.
        resumed: records that an earlier, interrupted run had packed.
        classes: names of the labels 0, 1, …, or None.
        seconds: duration of this run. bytes: size of the record files.
    """

    packed: int = 0
    skipped: list[Skip] = field(default_factory=list)
    incomplete: list[Skip] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    converted: int = 0
    resumed: int = 0
    classes: Optional[list[str]] = None
    seconds: float = 0.0
    bytes: int = 0

    @property
    def images_per_sec(self) -> float:
        """Images that this run packed, a second."""
        return (self.packed - self.resumed) / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "packed": self.packed, "skipped": [{"path": skip.path, "reason": skip.reason} for skip in self.skipped],
            "incomplete": [{"path": one.path, "reason": one.reason} for one in self.incomplete],
            "images_per_sec": round(self.images_per_sec, 1), "converted": self.converted, "resumed": self.resumed,
            "outputs": self.outputs, "bytes": self.bytes, "classes": self.classes, "seconds": round(self.seconds, 3),
        }  # fmt: skip


def pack(
    src: PathLike | Sequence[PathLike],
    out: PathLike,
    *,
    resize: int | None = None,
    crop: bool = False,
    format: str = "keep",
    quality: int | None = None,
    color: str = "keep",
    exact: bool = False,
    root: PathLike | None = None,
    path_column: str | None = None,
    label_columns: Sequence[str] | None = None,
    shuffle: bool | None = None,
    seed: int = 0,
    shards: int = 1,
    strict: bool = False,
    check: bool | None = None,
    resume: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> PackReport:
    """Pack images into RecordIO: ``OUT.rec``, ``OUT.idx``, ``OUT.crc`` and, for named labels, ``OUT.classes``.

    The files appear when they are complete. The same sources and options result in the same bytes, for any number of
    workers, and after a kill and ``resume``. Shards hold the same order, cut into ``shards`` pieces.

    Args:
        src: folder of class folders, ``.lst``, ``.csv``/``.tsv``, or one or several ``.tar`` archives (WebDataset
            shards); see ``read_source`` for ``root``, ``path_column``, ``label_columns``, ``shuffle`` and ``seed``.
        out: the ``.rec`` file; with shards ``OUT-00000-of-00004.rec`` and so on.
        resize, crop, format, quality, color, exact: of each image, see ``Transform``.
        shards: number of files.
        strict: end at the first image that cannot be packed or is incomplete; else it is listed in ``skipped`` or
            ``incomplete``.
        check: also decode copied files, to find incomplete ones, in three times the time; None: if ``strict``. Encoded
            ones are always checked, with ``exact`` none.
        resume: continue a killed or failed run with the same sources and options.
        workers: threads or processes that read and encode; None: one for each usable core.
        progress: called with (images done, images in all) as work goes on.

    Raises:
        GluontuneError: nothing to pack, cannot write, only damaged images, or one with ``strict``.
        UsageError: options that contradict each other.

    >>> import pathlib, tempfile
    >>> from gluontune.records import RecordReader
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (folder / "in" / name).mkdir(parents=True)
    ...     _ = (folder / "in" / name / "1.bmp").write_bytes(b"any bytes")
    >>> report = pack(folder / "in", folder / "pets.rec", exact=True)
    >>> report.packed, report.classes, sorted(RecordReader(folder / "pets.rec").labels().tolist())
    (2, ['cat', 'dog'], [0.0, 1.0])
    """
    started = time.perf_counter()
    transform = Transform(resize, crop, format, quality, color, exact)
    paths = shard_paths(out, shards)
    if workers is not None and workers < 1:
        raise UsageError(f"workers {workers}: give at least 1")
    source = read_source(
        src, root=root, path_column=path_column, label_columns=label_columns, shuffle=shuffle, seed=seed
    )
    if shards > len(source.items):
        raise UsageError(f"shards {shards}: there are only {len(source.items)} images")
    job = _Job(source, transform, strict, strict if check is None else check, progress)
    job.run(paths, resume, workers or usable_cores())
    report = job.report
    report.seconds = time.perf_counter() - started
    report.bytes = sum(path.stat().st_size for path in paths)
    return report


def shard_paths(out: PathLike, shards: int) -> list[Path]:
    """Names of the record files."""
    path = Path(out)
    if path.suffix != ".rec":
        raise UsageError(f"{path}: a record file's name ends in .rec")
    if shards < 1:
        raise UsageError(f"shards {shards}: give at least 1")
    if shards == 1:
        return [path]
    return [path.with_name(f"{path.stem}-{s:05d}-of-{shards:05d}.rec") for s in range(shards)]


class _Job:
    """One call of :func:`pack`."""

    def __init__(self, source: Source, transform: Transform, strict: bool, check: bool, progress: Progress | None):
        self.source, self.transform, self.strict = source, transform, strict
        self.check = check and not transform.exact
        self.progress = progress or (lambda done, total: None)
        self.report = PackReport(classes=source.classes)
        self.done = 0
        self.size = BLOCK_BYTES
        self.processes = False

    def run(self, paths: list[Path], resume: bool, workers: int) -> None:
        ranges = split_shards(len(self.source.items), len(paths))
        mean = _mean_size(self.source.items)
        self.size = max(1, min(256, int(BLOCK_BYTES / mean))) if self.transform.copies else 16
        many = len(self.source.items) >= WORTH_PROCESSES
        slow = self.transform.copies and mean < SMALL_FILE and native.load() is None
        self.processes = slow and many and workers > 1
        with contextlib.ExitStack() as stack:
            if not self.transform.copies:
                import cv2

                stack.callback(cv2.setNumThreads, cv2.getNumThreads())
                cv2.setNumThreads(1)  # its threads would compete with ours
            maker = stack.enter_context(BlockMaker(self.transform, workers, self.processes, self.check))
            for place, (path, positions) in enumerate(zip(paths, ranges)):
                self._shard(maker, path, positions, resume, (place, len(paths)))

    def _shard(self, maker: BlockMaker, path: Path, positions: range, resume: bool, place: tuple[int, int]) -> None:
        items = self.source.items[positions.start : positions.stop]
        job = replace(self.source, items=items).fingerprint(self.transform, place, self.source.classes)
        part = PartialFile(path, items, positions.start, job, resume, self.source.classes)
        try:
            self._refuse(part.skips, "an earlier run left it out, so pack anew without --resume")
            first = positions.start + part.done
            self.done += part.done
            self.progress(self.done, len(self.source.items))
            starts, size = range(first - positions.start, len(items), self.size), self.size
            for block in maker.blocks((items[at : at + size], positions.start + at) for at in starts):
                bad = sorted(block.skips + block.incomplete, key=lambda one: one.position)
                if self.strict and bad:
                    part.add(block.until(bad[0].position - self.done))
                    self._refuse(bad, "mend it and go on with --resume, or leave out --strict")
                part.add(block)
                maker.give_back(block)
                self.report.converted += block.converted
                self.report.incomplete += block.incomplete
                self.done += block.count
                self.progress(self.done, len(self.source.items))
            if not part.packed:
                part.discard()
                skip = part.skips[0]
                raise GluontuneError(
                    f"{path}: none of its {len(items)} images can be packed; {skip.path}: {skip.reason}"
                )
            part.finish()
        finally:
            part.close()
        self.report.packed += part.packed
        self.report.resumed += part.resumed
        self.report.skipped += part.skips
        self.report.outputs.append(str(path))

    def _refuse(self, skips: list[Skip], way_out: str) -> None:
        if self.strict and skips:
            raise GluontuneError(f"{skips[0].path}: {skips[0].reason}; {way_out}")


def _mean_size(items: list[Item]) -> float:
    """Mean size of the files, bytes, from 64 of them."""
    sizes = []
    for item in items[:: max(1, len(items) // 64)]:
        with contextlib.suppress(OSError):
            place = place_of(item.path)
            sizes.append(os.stat(item.path).st_size if place is None else place[2])
    return max(1.0, sum(sizes) / len(sizes)) if sizes else 1.0
