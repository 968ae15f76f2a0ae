"""Grain as work of a contender, over the record file itself. Runs in the peers' interpreter."""

from __future__ import annotations

import importlib
from typing import Any

from gluontune.bench._loaders_torch import Crops
from gluontune.bench.batches import Batches
from gluontune.records import RecordReader

__all__ = ["Payloads", "loader"]


class Payloads:
    """A random-access source, as Grain asks for one."""

    def __init__(self, path: str):
        self.reader = RecordReader(path)

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: Any) -> Any:
        return self.reader.payload(int(index))


def loader(path: str, size: int, batch_size: int, augment: str, threads: int, processes: int) -> Batches:
    """A shuffled ``MapDataset``, decoded by OpenCV on ``threads``, in ``processes`` where there are any."""
    library = importlib.import_module("grain")
    importlib.import_module("cv2").setNumThreads(0)  # the threads are the parallelism
    importlib.import_module("absl.flags").FLAGS.mark_as_parsed()  # which its processes ask for
    options = library.ReadOptions(num_threads=max(1, threads), prefetch_buffer_size=2 * batch_size)

    def epoch(number: int) -> Any:
        data = library.MapDataset.source(Payloads(path)).shuffle(seed=number).map(Crops(size, augment, "OpenCV"))
        made = data.to_iter_dataset(options).batch(batch_size, drop_remainder=True)
        if processes:
            made = made.mp_prefetch(library.MultiprocessingOptions(num_workers=processes))
        return made

    version = importlib.import_module("importlib.metadata").version("grain")
    return Batches(epoch, lambda batch: batch, {"versions": {"grain": version}})
