"""WebDataset as work of a contender, over the same bytes in tar shards. Runs in the peers' interpreter."""

from __future__ import annotations

import importlib
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

from gluontune.bench._loaders_torch import Crops
from gluontune.bench.batches import Batches
from gluontune.records import RecordReader

__all__ = ["loader", "write"]


def write(path: str, folder: Path, shards: int) -> list[str]:
    """The images of ``path``, dealt out to ``shards`` tar files in ``folder``; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [str(folder / f"shard-{k:04d}.tar") for k in range(shards)]
    with RecordReader(path) as reader:
        for k, name in enumerate(names):
            with tarfile.open(name, "w") as tar:
                for i in range(k, len(reader), shards):
                    payload = bytes(reader.payload(i))
                    info = tarfile.TarInfo(f"{i:08d}.jpg")
                    info.size = len(payload)
                    tar.addfile(info, BytesIO(payload))
    return names


def loader(path: str, size: int, batch_size: int, augment: str, num_workers: int, folder: str) -> Batches:
    """``WebDataset``, shuffled in a buffer, decoded and made into batches by the workers of a ``WebLoader``."""
    library, torch = importlib.import_module("webdataset"), importlib.import_module("torch")
    importlib.import_module("cv2").setNumThreads(0)  # the workers are the parallelism
    shards = write(path, Path(folder) / f"{Path(path).stem}-webdataset", 4 * max(1, num_workers))
    crops = Crops(size, augment, "OpenCV")

    def tensor(payload: Any) -> Any:
        return torch.from_numpy(crops(payload))

    data = library.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).to_tuple("jpg").map_tuple(tensor)
    made = library.WebLoader(
        data.batched(batch_size, partial=False),
        batch_size=None,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    return Batches(lambda number: made, lambda batch: batch[0], {"versions": {"webdataset": library.__version__}})
