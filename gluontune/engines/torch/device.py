"""The device of a rank on PyTorch's engine: which one, in which number formats, with how much memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.recipe import Recipe
from gluontune.recipe.rules import listed_gpus
from gluontune.runtime import usable_cores

_TENSOR_CORES = (8, 0)  # the first compute capability with TF32 and bfloat16
_MIB = 2**20
_OURS = 0.95  # of the free memory: PyTorch's blocks are larger than its tensors


class Device:
    """One GPU or the CPU.

    Args:
        library: PyTorch. recipe: of the run. local_rank: place among the ranks of this machine.

    Attributes:
        kind: ``cpu`` or ``gpu``. place: of tensors, such as ``cuda:1``. graphs: a compiled net runs as CUDA graphs.

    Raises:
        UsageError: no GPU for this rank, or one that does not compute in the recipe's dtype.
    """

    def __init__(self, library: Any, recipe: Recipe, local_rank: int):
        self.torch, self.recipe = library, recipe
        there = library.cuda.device_count() if recipe.devices != "cpu" and library.cuda.is_available() else 0
        if recipe.devices.startswith("gpu") and not there:
            raise self._wrong("devices", "this PyTorch sees no GPU; use devices='cpu' or 'auto'")
        self.kind, self.place = ("gpu" if there else "cpu"), "cpu"
        self.graphs = bool(there) and recipe.hybridize == "static"
        if not there:
            library.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or usable_cores()))
        else:
            gpus = listed_gpus(recipe.devices) or tuple(range(there))
            if local_rank >= len(gpus) or gpus[local_rank] >= there:
                text = f"no GPU for rank {local_rank} of this machine: this PyTorch sees {there}; name others, or fewer"
                raise self._wrong("devices", text + " num_devices")
            self.place = f"cuda:{gpus[local_rank]}"
            library.cuda.set_device(self.place)
            if recipe.runtime == "tuned":
                library.set_float32_matmul_precision("high")
                library.backends.cudnn.benchmark = True
        self._check_dtype()

    def _wrong(self, field: str, why: str) -> UsageError:
        return UsageError(f"recipe field {field}={getattr(self.recipe, field)!r}: {why}")

    def _check_dtype(self) -> None:
        dtype = self.recipe.dtype
        if self.kind == "gpu" and dtype == "bfloat16" and self.torch.cuda.get_device_capability() < _TENSOR_CORES:
            raise self._wrong("dtype", "this GPU has no arithmetic for it; use dtype='float16'")
        with self.cast():
            one = self.torch.ones(1, 1, device=self.place)
            made = (one @ one).dtype
        if made != getattr(self.torch, dtype):
            raise self._wrong("dtype", f"PyTorch {self.torch.__version__} has none on a CPU; use dtype='bfloat16'")

    def cast(self) -> contextlib.AbstractContextManager[Any]:
        """The context of a forward pass in the recipe's dtype; parameters and updates stay float32."""
        if self.recipe.dtype == "float32":
            return contextlib.nullcontext()
        kind = "cuda" if self.kind == "gpu" else "cpu"
        return self.torch.autocast(kind, dtype=getattr(self.torch, self.recipe.dtype))

    def compiled(self, net: Any) -> Any:
        """The net by ``torch.compile``; on a GPU its kernels are launched together, as CUDA graphs."""
        return self.torch.compile(net, mode="reduce-overhead") if self.graphs else self.torch.compile(net)

    def begin_step(self) -> None:
        """Release the memory of a graph's last outputs."""
        if self.graphs:
            self.torch.compiler.cudagraph_mark_step_begin()

    def own(self, output: Any) -> Any:
        """``output`` in memory that the next replay of the graph does not overwrite."""
        return output.clone() if self.graphs else output

    def sync(self) -> None:
        if self.kind == "gpu":
            self.torch.cuda.synchronize(self.place)

    def warnings(self) -> list[str]:
        """What a GPU's float32 means."""
        library = self.torch
        if self.kind == "cpu" or self.recipe.dtype != "float32":
            return []
        if library.cuda.get_device_capability() < _TENSOR_CORES or os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
            return ["float32 is computed as such: no TF32"]
        narrow = {
            "convolutions": library.backends.cudnn.allow_tf32,
            "matrix products": library.get_float32_matmul_precision() != "highest",
        }
        names = " and ".join(name for name, on in narrow.items() if on) or "nothing"
        way_out = "; env: {NVIDIA_TF32_OVERRIDE: '0'} computes all in float32" if any(narrow.values()) else ""
        return [f"float32 on this GPU: TF32, with 10 bits of mantissa, in {names}{way_out}"]

    def remarks(self) -> list[str]:
        """The memory of a training on a GPU."""
        if self.kind == "cpu":
            return []
        cuda = self.torch.cuda
        most, held = cuda.max_memory_allocated() // _MIB, cuda.max_memory_reserved() // _MIB
        return [f"{self._named()}: at most {most} MiB in tensors, {held} MiB held by PyTorch"]

    def _named(self) -> str:
        facts = self.torch.cuda.get_device_properties(self.place)
        return f"{self.place} ({facts.name}, {facts.total_memory // _MIB} MiB)"

    def random_state(self) -> dict[str, Any]:
        """The states of PyTorch's random streams, uint8 arrays."""
        found = {"torch": self.torch.get_rng_state().numpy().copy()}
        if self.kind == "gpu":
            found["cuda"] = self.torch.cuda.get_rng_state(self.place).numpy().copy()
        return found

    def restore_random(self, states: dict[str, Any]) -> None:
        """Restore :meth:`random_state`; a state of a device that is not used here is left out."""
        self.torch.set_rng_state(self.torch.from_numpy(states["torch"]))
        if self.kind == "gpu" and "cuda" in states:
            self.torch.cuda.set_rng_state(self.torch.from_numpy(states["cuda"]), self.place)

    @contextlib.contextmanager
    def fitting(self, trial: Callable[[int], None]) -> Iterator[None]:
        """A context whose out-of-memory error names a batch that fits; ``trial`` computes a step of so many images."""
        told = self.torch.cuda.OutOfMemoryError
        try:
            yield
            return
        except told:
            pass  # its frames hold tensors
        size = self.recipe.batch_size_per_device
        fits = self._fitting(trial, size)
        way_out = f"{fits} fit: use batch_size_per_device={fits}" if fits else "not even one fits: use a smaller net"
        raise GluontuneError(f"{self._named()}: out of memory in a step of {size} images; {way_out}")

    def _fitting(self, trial: Callable[[int], None], size: int) -> int:
        """The largest batch below ``size`` that was tried and fits, by the growth of memory between two; or 0."""
        tried: list[tuple[int, float]] = []
        while len(tried) < 2 and (size := size // 2):
            if (used := self._used(trial, size)) is not None:
                tried.append((size, used))
        if len(tried) < 2:
            return tried[0][0] if tried else 0
        (more, high), (less, low) = tried
        cuda = self.torch.cuda
        free = _OURS * (cuda.mem_get_info(self.place)[0] + cuda.memory_reserved(self.place))
        most = min(2 * more - 1, int(more + (free - high) * (more - less) / max(high - low, 1.0)))
        while most > more and self._used(trial, most - most % 8) is None:
            most = (most + more) // 2
        return max(more, most - most % 8)

    def _used(self, trial: Callable[[int], None], size: int) -> float | None:
        """Bytes of a step of ``size`` images, at most; None if they are not there."""
        cuda = self.torch.cuda
        cuda.empty_cache()
        cuda.reset_peak_memory_stats(self.place)
        try:
            trial(size)
        except cuda.OutOfMemoryError:
            return None
        return float(cuda.max_memory_allocated(self.place))
