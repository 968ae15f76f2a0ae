"""``gluontune bench packing``: our packer against MXNet's ``im2rec.py``, with and without a resize.

Both read the same list in the same order, from files in the page cache. A turn is one whole packing in a running
process: starting an interpreter and importing mxnet are not measured. im2rec.py runs with several ``--num-thread``;
its best counts. Ours also writes its checksum file and checks each image.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Union

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.records import pack
from gluontune.records.sources import read_source
from gluontune.runtime import mxnet, usable_cores
from gluontune.search.bench.benchmark import Terms, combine, document, show as show
from gluontune.search.bench.contender import OURS, Contender, Entrant

PathLike = Union[str, "os.PathLike[str]"]
HOME = "gluontune.search.bench.packing:"
PARTS = ("pass-through", "resize")


def run(
    src: PathLike, *, root: PathLike | None = None, size: int = 256, quality: int = 90, workers: int | None = None,
    part: str = "both", **terms: Any,
) -> dict[str, Any]:  # fmt: skip
    """Measure both packers, first passing files through, then resizing; return the document of :func:`combine`.

    ``src`` and ``root`` are as of ``gt.records.pack``, ``terms`` of :class:`Terms`; a slice is a whole packing.
    """
    if part not in ("both", *PARTS):
        raise UsageError(f"part {part!r}: choose both, {' or '.join(PARTS)}")
    cores, how = workers or usable_cores(), Terms(**{"rounds": 5, **terms})
    given = {
        "src": os.path.abspath(src), "root": str(root), "size": size, "quality": quality, "workers": cores,
        "rounds": how.rounds, "only": list(how.only or ()),
    }  # fmt: skip
    with how.journal("bench packing", given) as journal, tempfile.TemporaryDirectory(prefix="gluontune-") as folder:
        lst, base = write_list(src, root, Path(folder))

        def measured(name: str) -> dict[str, Any]:
            resized, place, sizes = size if name == "resize" else None, Path(folder, name), dict[str, Any]()
            place.mkdir()
            field = how.kept(entrants(str(lst), str(base), str(place), resized, quality, cores))

            def weigh(done: list[Contender]) -> None:
                sizes.update({c.entrant.name: c.ask("bytes") for c in done})

            done = how.contest(field, rounds=how.rounds, say=partial(how.tell, of=name), finish=weigh)
            conditions = {
                "images": len(lst.read_text(encoding="utf-8").splitlines()), "resize": resized,
                "quality": quality if resized else None, "most_workers": cores, "rounds": how.rounds, "bytes": sizes,
            }  # fmt: skip
            return document(done, conditions=conditions)

        names = PARTS if part == "both" else (part,)
        return combine({name: journal.piece(name, partial(measured, name)) for name in names})


def write_list(src: PathLike, root: PathLike | None, folder: Path) -> tuple[Path, Path]:
    """A ``.lst`` of the source for both packers, and the folder at which its paths begin.

    >>> place = Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (place / "in" / name).mkdir(parents=True)
    ...     _ = (place / "in" / name / "1.jpg").write_bytes(b"x")
    >>> lst, base = write_list(place / "in", None, place)
    >>> sorted(line.split("\\t")[2] for line in lst.read_text().splitlines())
    ['cat/1.jpg', 'dog/1.jpg']
    """
    items = read_source(src, root=root).items
    paths = [os.path.abspath(item.path) for item in items]
    base = os.path.commonpath([os.path.dirname(path) for path in paths])
    lst = folder / "list.lst"
    with open(lst, "w", encoding="utf-8") as stream:
        for item, path in zip(items, paths):
            labels = item.label if isinstance(item.label, tuple) else (item.label,)
            fields = [str(item.key), *(f"{label:g}" for label in labels), os.path.relpath(path, base)]
            stream.write("\t".join(fields) + "\n")
    return lst, Path(base)


def entrants(lst: str, root: str, folder: str, size: int | None, quality: int, workers: int) -> list[Entrant]:
    """The field; ``size`` None passes the files through."""
    data = {"lst": lst, "root": root, "folder": folder, "size": size, "quality": quality}
    ours = {**data, "workers": workers}
    field = [Entrant(f"gluontune pack, {workers} workers", OURS, f"{HOME}Packer", ours, slices="once")]
    for count in sorted({1, workers, 2 * workers}):
        settings, name = {**data, "num_thread": count}, f"im2rec.py --num-thread {count}"
        field.append(Entrant(name, "im2rec.py", f"{HOME}Im2rec", settings, slices="once"))
    return field


class Packer:
    """``gt.records.pack``, of a ``.lst`` whose paths begin at ``root``."""

    def __init__(self, lst: str, root: str, folder: str, size: int | None, quality: int, workers: int | None):
        self.lst, self.out = lst, Path(folder) / "gluontune.rec"
        options: dict[str, Any] = {"format": "jpg", "resize": size, "quality": quality} if size else {}
        self.options = {"root": root, "workers": workers, **options}
        self.info: dict[str, Any] = {}

    def step(self) -> int:
        report = pack(self.lst, self.out, **self.options)
        if report.skipped:
            raise GluontuneError(f"{len(report.skipped)} images were left out: {report.skipped[0].reason}")
        return report.packed

    def bytes(self) -> int:
        return self.out.stat().st_size


class Im2rec:
    """``im2rec.py`` of the installed mxnet, run in this process, which has imported mxnet before the clock starts."""

    def __init__(self, lst: str, root: str, folder: str, size: int | None, quality: int, num_thread: int):
        mx = mxnet()  # restores numpy's aliases, which im2rec.py needs
        self.script, self.prefix = im2rec_path(), Path(folder) / f"im2rec-{num_thread}" / "list"
        self.prefix.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(lst, f"{self.prefix}.lst")
        self.wanted = len(Path(lst).read_text(encoding="utf-8").splitlines())
        work = ["--resize", str(size), "--quality", str(quality)] if size else ["--pass-through"]
        self.arguments = [str(self.prefix), root, *work, "--num-thread", str(num_thread)]
        self.info = {"versions": {"mxnet": mx.__version__}}

    def step(self) -> int:
        before, sys.argv = sys.argv, [str(self.script), *self.arguments]
        try:
            left = runpy.run_path(str(self.script), run_name="__main__")
            if "record" in left:  # with one thread it leaves the file open until the interpreter ends
                left["record"].close()
        finally:
            sys.argv = before
        with open(f"{self.prefix}.idx", encoding="utf-8") as index:
            packed = sum(1 for _ in index)
        if packed != self.wanted:
            raise GluontuneError(f"im2rec.py packed {packed} of {self.wanted} images")
        return packed

    def bytes(self) -> int:
        return Path(f"{self.prefix}.rec").stat().st_size


def im2rec_path() -> Path:
    """The path of ``im2rec.py`` in the installed mxnet.

    >>> im2rec_path().name
    'im2rec.py'
    """
    folder = Path(str(mxnet().__file__)).parent
    for path in (folder / "tools" / "im2rec.py", folder.parent / "tools" / "im2rec.py"):
        with contextlib.suppress(OSError):
            if path.is_file():
                return path
    raise GluontuneError(f"{folder}: this mxnet has no tools/im2rec.py")
