"""GPUs that record what PyTorch and MXNet ask of them and leave the arithmetic to the CPU.

As real ones do, they refuse operators on arrays of two devices.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import ClassVar


class OutOfMemory(RuntimeError):
    """In the place of ``torch.cuda.OutOfMemoryError``."""


class FakeGpu:
    """In the place of ``torch.cuda`` and of what moves tensors there, for one test.

    Tensors that were moved or made there, and what is computed of them, say so (``tensor.device``).

    Args:
        capability: compute capability. mib: memory of each GPU. per_image, fixed: MiB of a trained image, and of the
            net: more than ``mib`` raises OutOfMemory.

    Attributes:
        calls: what was asked, one tuple each: a name, then dtype, device, stream and the like.
    """

    OutOfMemoryError = OutOfMemory

    def __init__(self, monkeypatch, torch, count=1, capability=(8, 0), mib=1024, per_image=0.0, fixed=0.0):
        self.torch, self.count, self.capability, self.mib = torch, count, capability, mib
        self.per_image, self.fixed, self.peak = per_image, fixed, 0
        self.calls, self.now = [], "default"
        self._set, self._real = monkeypatch.setattr, torch.cuda
        self._set(torch, "cuda", self)
        self.placed = _Placed(monkeypatch, torch)
        self._set(torch.Tensor, "pin_memory", lambda tensor: self._note("pin", tensor) or tensor.clone())
        self._set(torch.Tensor, "record_stream", lambda tensor, stream: self._note("record", tensor, stream.name))
        for kind in (torch.Tensor, torch.nn.Module):
            self._set(kind, "to", self._moving(kind, kind.to))
        for name in ("as_tensor", "ones", "zeros"):
            self._set(torch, name, self._placing(getattr(torch, name)))
        autocast = torch.autocast
        self._set(
            torch, "autocast", lambda kind, dtype: self._note("autocast", None, kind, dtype) or autocast("cpu", dtype)
        )
        self._set(torch, "compile", lambda net, **how: self._note("compile", None, how) or _Compiled(net))
        mark = lambda: self._note("new graph step")  # noqa: E731
        self._set(torch.compiler, "cudagraph_mark_step_begin", mark)

    @staticmethod
    def leave():
        """After a test: operators are watched no longer."""
        while _Placed.watching:
            _Placed.watching.pop().__exit__(None, None, None)

    def _note(self, what, tensor=None, *more):
        dtype = () if tensor is None else (str(tensor.dtype).removeprefix("torch."),)
        self.calls.append((what, *dtype, *more))

    def __getattr__(self, name):
        return getattr(self._real, name)

    def named(self, *names):
        """The calls of these names."""
        return [call for call in self.calls if call[0] in names]

    def _moving(self, kind, moves):
        def to(this, *args, **how):
            place = str(args[0]) if args else ""
            if place.startswith("cuda"):
                tensor = this if kind is self.torch.Tensor else None
                self._note("move", tensor, place, self.now, "non_blocking" if how.get("non_blocking") else "blocking")
                if tensor is not None:
                    return self.placed.put(this.clone(), place)
                for each in (*this.parameters(), *this.buffers()):
                    self.placed.put(each, place)
                return this
            return this.cpu() if place == "cpu" and kind is self.torch.Tensor else moves(this, *args, **how)

        return to

    def _placing(self, makes):
        def make(*args, device=None, **how):
            if not str(device).startswith("cuda"):
                return makes(*args, device=device, **how)
            self._note("make", None, str(device))
            return self.placed.put(makes(*args, **how), device)

        return make

    # What follows has the names and arguments of torch.cuda.
    def is_available(self):
        return self.count > 0

    def device_count(self):
        return self.count

    def set_device(self, place):
        self._note("set_device", None, str(place))

    def get_device_capability(self):
        return self.capability

    def get_device_properties(self, place):
        return SimpleNamespace(name="Fake", total_memory=self.mib << 20)

    def synchronize(self, place=None):
        self._note("synchronize", None, str(place))

    def Stream(self, device):
        return _Stream(self, "side")

    def current_stream(self, device):
        return _Stream(self, self.now)

    @contextlib.contextmanager
    def stream(self, side):
        before, self.now = self.now, side.name
        yield
        self.now = before

    def forward(self, images):
        """A forward pass of so many images takes memory."""
        wanted = self.fixed + images * self.per_image
        if wanted > self.mib:
            raise OutOfMemory(f"CUDA out of memory: {wanted} MiB")
        self.peak = max(self.peak, wanted)

    def empty_cache(self):
        self._note("empty_cache")

    def reset_peak_memory_stats(self, place=None):
        self.peak = 0

    def max_memory_allocated(self, place=None):
        return int(self.peak) << 20

    max_memory_reserved = max_memory_allocated

    def memory_reserved(self, place=None):
        return 0

    def mem_get_info(self, place=None):
        return self.mib << 20, self.mib << 20

    def get_rng_state(self, place=None):
        return self.torch.full((4,), 7, dtype=self.torch.uint8)

    def set_rng_state(self, state, place=None):
        self._note("set_rng_state", state, state.tolist(), str(place))


class _Stream:
    def __init__(self, gpu, name):
        self.gpu, self.name = gpu, name

    def wait_stream(self, other):
        self.gpu._note("wait", None, self.name, other.name)


class _Placed:
    """Where tensors are said to be, by their memory; and the refusal of operators on two devices."""

    #: Given two devices, PyTorch computes these.
    COPIES = ("aten::copy_", "aten::_foreach_copy_", "aten::index")
    watching: ClassVar[list] = []

    def __init__(self, monkeypatch, torch):
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves

        self.torch, self.places, real = torch, {}, torch._C.TensorBase.device.__get__
        tensors_of = lambda nest: [leaf for leaf in tree_leaves(nest) if isinstance(leaf, torch.Tensor)]  # noqa: E731

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(watch, operator, types, args=(), kwargs=None):
                given = tensors_of((args, kwargs))
                seen = {self.of(each) for each in given if each.dim() or self.of(each)}
                if len(seen) > 1 and operator._schema.name not in self.COPIES:
                    places = " and ".join(sorted(str(place or "cpu") for place in seen))
                    raise RuntimeError(f"{operator}: expected all tensors on the same device, found {places}")
                made = operator(*args, **(kwargs or {}))
                if operator._schema.name != "aten::copy_" and (place := max(seen, key=bool, default=None)):
                    for each in tensors_of(made):
                        self.put(each, place)
                return made

        def host(tensor):
            made = tensor.clone()
            self.places.pop(made.untyped_storage()._cdata, None)
            return made

        def numpy(tensor, *how, usual=torch.Tensor.numpy, **more):
            if self.of(tensor):
                raise TypeError(f"can't convert {self.of(tensor)} device type tensor to numpy")
            return usual(tensor, *how, **more)

        monkeypatch.setattr(torch.Tensor, "device", property(lambda t: self.of(t) or real(t)), raising=False)
        monkeypatch.setattr(torch.Tensor, "cpu", host)
        monkeypatch.setattr(torch.Tensor, "numpy", numpy)
        _Placed.watching.append(Watch())
        _Placed.watching[-1].__enter__()

    def of(self, tensor):
        """The device that the tensor was put on, or None."""
        return self.places.get(tensor.untyped_storage()._cdata, (None,))[0]

    def put(self, tensor, place):
        """``tensor``, which is there from now on; its memory is kept, so that no other takes its number."""
        storage = tensor.untyped_storage()
        self.places[storage._cdata] = self.torch.device(str(place)), storage
        return tensor


class _Compiled:
    """A compiled net: its output lies in memory that the next call overwrites, as a CUDA graph's does."""

    def __init__(self, net):
        self.net, self.last = net, None

    def __call__(self, images):
        out = self.net(images)
        if self.last is not None and self.last.shape == out.shape and not out.requires_grad:
            self.last.fill_(float("nan"))
        self.last = out.detach() if not out.requires_grad else None
        return out


class FakeMxnetGpus:
    """GPUs for MXNet, for one test: contexts that say ``gpu`` and compute on the CPU.

    An operator that is given arrays of two devices fails, as a real GPU's would. GPU ``i`` is ``cpu(i + 1)``, so that
    the default context is none of them.

    Attributes:
        seen: the devices on which operators and compiled nets ran, as their arrays name them.
    """

    def __init__(self, monkeypatch, mx, count=1):
        self.mx, self.seen = mx, set()

        class Gpu(mx.Context):
            device_type = "gpu"

            def __init__(self, number=0):
                super().__init__("cpu", number + 1)

            def __str__(self):  # what operators are told
                return f"cpu({self.device_id})"

        self.gpu = Gpu
        monkeypatch.setattr(mx, "gpu", Gpu)
        monkeypatch.setattr(mx.context, "num_gpus", lambda: count)
        real = mx.nd.NDArray.context.fget
        place = property(lambda array: Gpu(there.device_id - 1) if (there := real(array)).device_id else there)
        monkeypatch.setattr(mx.nd.NDArray, "context", place)
        monkeypatch.setattr(mx.nd.NDArray, "ctx", place)
        create = mx.kv.create

        def created(name="local"):
            if name == "nccl":  # MXNet's build for GPUs has it, and then wants a driver
                raise mx.MXNetError("no nccl here")
            return create(name)

        monkeypatch.setattr(mx.kv, "create", created)
        invoke, call = mx.ndarray.register._imperative_invoke, mx._ctypes.ndarray.CachedOp.__call__
        copies = {}

        def invoked(handle, ndargs, keys, vals, out, *how):
            outs = [out] if isinstance(out, mx.nd.NDArray) else list(out or [])
            if handle not in copies:
                copies[handle] = "copyto" in _operator(mx, handle)
            if not copies[handle]:
                self._one_device([*ndargs, *outs])
            return invoke(handle, ndargs, keys, vals, out, *how)

        def called(op, *args, **how):
            self._one_device(args)
            return call(op, *args, **how)

        monkeypatch.setattr(mx.ndarray.register, "_imperative_invoke", invoked)
        monkeypatch.setattr(mx._ctypes.ndarray.CachedOp, "__call__", called)

    def _one_device(self, arrays):
        places = {str(array.context) for array in arrays}
        if len(places) > 1:
            raise self.mx.MXNetError(f"arrays of {' and '.join(sorted(places))} in one operator")
        self.seen |= places


def _operator(mx, handle):
    """The name of an operator by its handle."""
    import ctypes

    name, none, count = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_uint()
    lists = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
    variable, kind = ctypes.c_char_p(), ctypes.c_char_p()
    mx.base.check_call(
        mx.base._LIB.MXSymbolGetAtomicSymbolInfo(
            ctypes.c_void_p(handle),
            ctypes.byref(name),
            ctypes.byref(none),
            ctypes.byref(count),
            *(ctypes.byref(each) for each in lists),
            ctypes.byref(variable),
            ctypes.byref(kind),
        )
    )
    return name.value.decode()
