"""Packing as work of a contender: a step packs the whole list. Ours, and MXNet's own ``im2rec.py``."""

from __future__ import annotations

import contextlib
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.records import pack
from gluontune.runtime import mxnet


class Packer:
    """``gt.records.pack``, of a ``.lst`` whose paths begin at ``root``."""

    def __init__(self, lst: str, root: str, folder: str, size: int | None, quality: int, workers: int | None):
        self.lst, self.out = lst, Path(folder) / "gluontune.rec"
        options: dict[str, Any] = {"format": "jpg", "resize": size, "quality": quality} if size else {}
        self.options = {"root": root, "workers": workers, **options}
        self.info: dict[str, Any] = {}

    def step(self) -> int:
        """Pack all; the number of records."""
        report = pack(self.lst, self.out, **self.options)
        if report.skipped:
            raise GluontuneError(f"{len(report.skipped)} images were left out: {report.skipped[0].reason}")
        return report.packed

    def bytes(self) -> int:
        """Size of what was packed last."""
        return self.out.stat().st_size


class Im2rec:
    """``im2rec.py`` of the installed mxnet, run in this process, which has imported mxnet before the clock starts."""

    def __init__(self, lst: str, root: str, folder: str, size: int | None, quality: int, num_thread: int):
        mx = mxnet()  # with numpy's aliases put back, without which im2rec.py cannot be imported either
        self.script, self.prefix = im2rec_path(), Path(folder) / f"im2rec-{num_thread}" / "list"
        self.prefix.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(lst, f"{self.prefix}.lst")
        self.wanted = len(Path(lst).read_text(encoding="utf-8").splitlines())
        work = ["--resize", str(size), "--quality", str(quality)] if size else ["--pass-through"]
        self.arguments = [str(self.prefix), root, *work, "--num-thread", str(num_thread)]
        self.info = {"versions": {"mxnet": mx.__version__}}

    def step(self) -> int:
        """Pack all; the number of records."""
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
        """Size of what was packed last."""
        return Path(f"{self.prefix}.rec").stat().st_size


def im2rec_path() -> Path:
    """Where the installed mxnet keeps ``im2rec.py``.

    >>> im2rec_path().name
    'im2rec.py'
    """
    folder = Path(str(mxnet().__file__)).parent
    for path in (folder / "tools" / "im2rec.py", folder.parent / "tools" / "im2rec.py"):
        with contextlib.suppress(OSError):
            if path.is_file():
                return path
    raise GluontuneError(f"{folder}: this mxnet has no tools/im2rec.py")
