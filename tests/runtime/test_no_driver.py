"""The stand-in for the driver's library: a real shared library, loaded only where there is no driver."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from gluontune.runtime import cuda, elf

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="wants x86-64, as the stand-in")
#: What libmxnet.so of mxnet-cu112 1.9.1 takes of the driver.
OF_CU112 = [
    "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuGetErrorString", "cuGraphKernelNodeGetParams", "cuGraphNodeGetType",
    "cuLaunchKernel", "cuModuleGetFunction", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleUnload",
]  # fmt: skip


@pytest.mark.parametrize("functions", [[], ["cuInit"], OF_CU112, [f"cuOdd{n}" for n in range(300)]], ids=len)
def test_every_function_answers_no_device(tmp_path, functions):
    place = tmp_path / "libcuda.so.1"
    place.write_bytes(cuda.stand_in(functions))
    assert elf.read_dynamic(place) == elf.Dynamic((), "libcuda.so.1")
    code = "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]); print([getattr(f, n)(0, 0) for n in sys.argv[2:]])"
    ran = subprocess.run([sys.executable, "-c", code, place, *functions], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str([100] * len(functions))


def test_a_name_that_ends_another_has_its_own_function(tmp_path):
    (tmp_path / "a.so").write_bytes(cuda.stand_in(["cuGraphNodeGet", "cuGraph", "Node"], "a.so"))
    library = ctypes.CDLL(str(tmp_path / "a.so"))
    assert [library.cuGraph(), library.Node(), library.cuGraphNodeGet()] == [100, 100, 100]
    with pytest.raises(AttributeError):
        library.cuGraphNode  # noqa: B018


def test_a_driver_whose_library_is_hidden_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda, "KERNEL_MODULE", "/proc/version")
    assert not cuda.stand_in_possible()
    assert not cuda.load_stand_in(cuda.__file__)


def test_the_kernel_module_tells_a_driver(tmp_path):
    assert cuda.stand_in_possible(tmp_path)
    place = tmp_path / cuda.KERNEL_MODULE.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text("NVRM version: 550")
    assert not cuda.stand_in_possible(tmp_path)


def test_a_file_that_is_no_library_is_no_reason_to_load(tmp_path):
    (tmp_path / "libmxnet.so").write_bytes(b"x" * 100)
    assert not cuda.load_stand_in(tmp_path / "libmxnet.so")


@pytest.mark.mxnet
def test_undefined_names_are_read_from_a_real_library():
    from gluontune.runtime.importing import mxnet_library

    library = mxnet_library()
    assert "dlopen" in elf.undefined(library, "dl[a-z]+")
    assert elf.undefined(library, r"cu[A-Z]\w+") in ([], OF_CU112)  # the build for the CPU, or for GPUs
