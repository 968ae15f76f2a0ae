"""MXNet's ``.params`` files, read and written without mxnet, and parameters set in a net.

A file is: 0x112 and a reserved word (uint64 each), the number of arrays, the arrays, the number of names, the
names. All three generations of array headers are read (MXNet 0.x, 1.x, and numpy-shaped arrays); dense only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import atomic_write, explain_os_error, read_npz
from gluontune.core.reading import read_bytes
from gluontune.runtime import mxnet, set_data

_LIST, _V1, _V2, _V3 = 0x112, 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_DTYPES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool", "int16", "uint16",
           "uint32", "uint64", "bfloat16")  # fmt: skip


def read_params(path: str | Path) -> dict[str, np.ndarray]:
    """A file's arrays by name, without ``arg:`` and ``aux:``.

    Args:
        path: a ``.params`` file, or an ``.npz``. bfloat16 arrays are returned as float32.

    Raises:
        GluontuneError: an unreadable or truncated file, or arrays without names.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "net.params"
    >>> write_params(file, {"arg:dense0_weight": np.ones((2, 3), "float32")})
    >>> read_params(file)["dense0_weight"].shape
    (2, 3)
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise explain_os_error(path, error) from error
    try:
        arrays = read_npz(path) if data[:2] == b"PK" else _Reader(data, str(path)).read()
    except (struct.error, ValueError, IndexError, MemoryError) as error:
        raise GluontuneError(f"{path}: a damaged or cut .params file ({error}): export or copy it again") from error
    plain = {name[4:] if name.startswith(("arg:", "aux:")) else name: a for name, a in arrays.items()}
    if len(plain) < len(arrays):
        raise GluontuneError(f"{path}: two of its arrays have one name")
    return plain


def write_params(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays as ``mx.nd.save`` does; names stay unchanged (``arg:`` and ``aux:`` for ``export``'s).

    Args:
        path: the file. arrays: numpy arrays by name; dtypes stay unchanged.
    """
    with atomic_write(path) as stream:
        stream.write(struct.pack("<QQQ", _LIST, 0, len(arrays)))
        for value in arrays.values():
            array = np.ascontiguousarray(value)
            version = _V2 if np.ndim(value) else _V3
            shape = np.shape(value)
            stream.write(struct.pack("<Iii", version, 0, len(shape)) + struct.pack(f"<{len(shape)}q", *shape))
            stream.write(struct.pack("<iii", 1, 0, _DTYPES.index(array.dtype.name)) + array.tobytes())
        stream.write(struct.pack("<Q", len(arrays)))
        for name in arrays:
            stream.write(struct.pack("<Q", len(name.encode())) + name.encode())


class _Reader:
    def __init__(self, data: bytes, path: str):
        self.data, self.path, self.at = memoryview(data), path, 0

    def take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return found

    def read(self) -> dict[str, np.ndarray]:
        if self.take("QQ")[0] != _LIST:
            raise GluontuneError(f"{self.path}: not a parameter file of MXNet's")
        arrays = [self._array() for _ in range(self.take("Q")[0])]
        names = [self._name() for _ in range(self.take("Q")[0])]
        if len(names) != len(arrays):
            raise GluontuneError(f"{self.path}: holds {len(arrays)} arrays but {len(names)} names; save a dict")
        if len(set(names)) < len(names):
            raise ValueError("two arrays have one name")
        return dict(zip(names, arrays))

    def _name(self) -> str:
        (size,) = self.take("Q")
        self.at += size
        if self.at > len(self.data):
            raise ValueError("a name is cut")
        return bytes(self.data[self.at - size : self.at]).decode()

    def _array(self) -> np.ndarray:
        (version,) = self.take("I")
        if version in (_V2, _V3):
            if self.take("i")[0] > 0:
                raise GluontuneError(f"{self.path}: holds sparse arrays; save them dense (tostype('default'))")
            (ndim,) = self.take("i")
        else:
            ndim = self.take("I")[0] if version == _V1 else version
        if ndim < 0 or (ndim == 0 and version != _V3):
            return np.empty(0, "float32")  # an array without a shape, and without data
        if ndim > 32:
            raise ValueError(f"an array of {ndim} dimensions")
        shape = self.take(f"{ndim}{'q' if version in (_V1, _V2, _V3) else 'I'}")
        _, _, flag = self.take("iii")
        if not 0 <= flag < len(_DTYPES):
            raise ValueError(f"an unknown number type {flag}")
        name = _DTYPES[flag]
        kind = np.dtype("uint16" if name == "bfloat16" else name)
        count = math.prod(shape)
        if min(shape, default=0) < 0 or count * kind.itemsize > len(self.data) - self.at:
            raise ValueError(f"an array of shape {shape}, which it does not hold")
        array = np.frombuffer(self.data, kind, count, self.at).reshape(shape)
        self.at += count * kind.itemsize
        if name == "bfloat16":
            return (array.astype("uint32") << 16).view("float32")
        return array.copy()


def set_parameters(net: Any, arrays: Mapping[str, Any], source: str = "parameters") -> None:
    """Set every parameter of ``net`` from arrays with the names of ``net.save_parameters``.

    Names may begin with ``net.``, as those of a net behind an input stage.

    Args:
        net: an initialized Gluon block. arrays: NDArrays or numpy arrays by name.
        source: their name in errors.

    Raises:
        GluontuneError: names one that is missing, left over, or of another shape.

    >>> net = mxnet().gluon.nn.Dense(1, in_units=2)
    >>> net.initialize()
    >>> set_parameters(net, {"weight": np.ones((1, 2)), "bias": np.zeros(1)})
    >>> net(mxnet().nd.ones((1, 2))).asnumpy().tolist()
    [[2.0]]
    """
    mx = mxnet()
    mine = net._collect_params_with_prefix()
    saved = {k[4:] if k.startswith("net.") and k not in mine else k: v for k, v in arrays.items()}
    for name in [*mine, *saved]:
        if name not in saved or name not in mine:
            where = "not in the file" if name not in saved else "not in the net"
            raise GluontuneError(f"{source}: of another net: parameter {name} is {where}")
        shape = mine[name].shape  # None in a net of SymbolBlock.imports
        if shape is not None and (
            len(shape) != np.ndim(saved[name]) or any(a > 0 and a != b for a, b in zip(shape, saved[name].shape))
        ):
            raise GluontuneError(
                f"{source}: of another net: parameter {name} has shape {tuple(saved[name].shape)}, the net's "
                f"{tuple(shape)}"
            )
    for name, parameter in mine.items():
        values = np.asarray(saved[name], "float32")
        if not parameter._data:
            parameter.shape = values.shape
            parameter.initialize(ctx=mx.cpu())
        set_data(parameter, mx.nd.array(values))


def load_parameters(net: Any, path: str | Path) -> None:
    """Load parameters from a file: ``.params`` (MXNet's) or ``.npz`` (numpy's)."""
    file = Path(path)
    if not file.is_file():
        raise GluontuneError(f"{path}: no such file; give a checkpoint, its folder, a .params or a .npz file")
    if file.suffix == ".npz":
        try:
            arrays: dict[str, Any] = read_npz(file)
        except (OSError, ValueError) as error:
            raise GluontuneError(f"{path}: cannot be read as .npz: {error}") from error
    elif file.suffix == ".params":
        arrays = read_params(file)  # not by MXNet's reader: damaged files end its process
    else:
        raise UsageError(f"{path}: give a checkpoint (.ckpt), its folder, a .params or a .npz file")
    set_parameters(net, arrays, str(path))


def perturb(net: Any, seed: int = 0) -> None:
    """Move gammas, betas and running statistics off their initial values, so that a mix-up changes outputs."""
    rng, mx = np.random.default_rng(seed), mxnet()
    for name, parameter in net.collect_params().items():
        if name.endswith(("gamma", "running_var")):
            values = rng.uniform(0.8, 1.2, parameter.shape)
        elif name.endswith(("beta", "running_mean", "bias")):
            values = rng.normal(0, 0.1, parameter.shape)
        else:
            continue
        set_data(parameter, mx.nd.array(values))
