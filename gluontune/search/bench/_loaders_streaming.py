"""MosaicML Streaming as work of a contender, over the same bytes in MDS shards. Runs in the peers' interpreter."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

from gluontune.records import RecordReader
from gluontune.search.bench._loaders_torch import Crops
from gluontune.search.bench.batches import Batches

__all__ = ["loader"]


def loader(path: str, size: int, batch_size: int, augment: str, num_workers: int, folder: str) -> Batches:
    """A local ``StreamingDataset``, shuffled by itself, decoded by OpenCV in a ``StreamingDataLoader``'s workers."""
    torch = importlib.import_module("torch")
    _let_torchvision_in(torch)
    library = importlib.import_module("streaming")
    importlib.import_module("cv2").setNumThreads(0)  # the workers are the parallelism
    library.base.util.clean_stale_shared_memory()  # of a contender that was ended
    shards = str(Path(folder) / f"{Path(path).stem}-mds")
    with RecordReader(path) as reader, library.MDSWriter(out=shards, columns={"image": "bytes"}) as writer:
        for i in range(len(reader)):
            writer.write({"image": bytes(reader.payload(i))})
    crops = Crops(size, augment, "OpenCV")

    class Images(library.StreamingDataset):  # type: ignore[misc, name-defined]
        def __getitem__(self, index: Any) -> Any:
            return torch.from_numpy(crops(super().__getitem__(index)["image"]))

    made = library.StreamingDataLoader(
        Images(local=shards, shuffle=True, batch_size=batch_size),
        batch_size=batch_size,
        num_workers=num_workers,
        drop_last=True,
        persistent_workers=num_workers > 0,
    )
    version = importlib.import_module("importlib.metadata").version("mosaicml-streaming")
    return Batches(lambda number: made, lambda batch: batch, {"versions": {"mosaicml-streaming": version}})


def _let_torchvision_in(torch: Any) -> None:
    """Streaming imports torchvision for data sets that are not used here.

    Beside PyTorch's build for CPUs the operators of PyPI's torchvision, a build for CUDA, cannot be loaded, and its
    import ends at what it says about them: they are declared, and never called.
    """
    there = importlib.util.find_spec("torchvision")
    if there is None or there.origin is None or torch.version.cuda is not None:
        return
    text = (Path(there.origin).parent / "_meta_registrations.py").read_text()
    for name in {*re.findall(r'register_meta\("(\w+)"', text), *re.findall(r"torchvision::(\w+)", text)}:
        torch.library.define(f"torchvision::{name}", "(Tensor any) -> Tensor")
