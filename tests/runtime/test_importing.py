"""mxnet() imports the real mxnet, mends what it can, and says what it cannot mend. ELF files are read rightly."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import gluontune
from gluontune.core.errors import GluontuneError
from gluontune.runtime import cuda, elf, importing

HOME = str(Path(gluontune.__file__).parents[1])


def run(code, *paths, check=True, **env):
    """Python in a process of its own, with ``paths`` before everything else on ``sys.path``."""
    code = f"import sys; sys.path[:0] = {[str(p) for p in paths] + [HOME]!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env or None)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- ELF


def make_elf(needed=(), soname=None, rpath=None, fatbin=b""):
    """A small but true ELF-64 file: program headers, dynamic section, and an ``.nv_fatbin`` section."""
    strings = b"\0"
    offsets = {}
    for text in (*needed, *(t for t in (soname, rpath) if t)):
        offsets[text] = len(strings)
        strings += text.encode() + b"\0"
    names = b"\0.nv_fatbin\0.shstrtab\0"
    base = 0x10000  # addresses differ from places in the file, as in real libraries
    at_strings = 64 + 2 * 56
    at_dynamic = at_strings + len(strings) + (-len(strings)) % 8
    entries = [(1, offsets[n]) for n in needed] + [(5, base + at_strings)]
    entries += [(14, offsets[soname])] if soname else []
    entries += [(29, offsets[rpath])] if rpath else []
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in [*entries, (0, 0)])
    at_fatbin = at_dynamic + len(dynamic)
    at_names = at_fatbin + len(fatbin)
    at_sections = at_names + len(names) + (-len(names)) % 8
    size = at_sections + 3 * 64
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, at_sections, 0, 64, 56, 2, 64, 3, 2)
    programs = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 4096)
    programs += struct.pack(
        "<IIQQQQQQ", 2, 6, at_dynamic, base + at_dynamic, base + at_dynamic, len(dynamic), len(dynamic), 8
    )
    body = (header + programs + strings).ljust(at_dynamic, b"\0") + dynamic + fatbin + names
    sections = bytes(64)
    for name, offset, length in ((1, at_fatbin, len(fatbin)), (12, at_names, len(names))):
        sections += struct.pack("<IIQQQQIIQQ", name, 1, 2, 0, offset, length, 0, 0, 8, 0)
    return body.ljust(at_sections, b"\0") + sections


def fat_container(*entries):
    """A fat binary with (kind, architecture, size of the code) entries."""
    body = b""
    for kind, arch, size in entries:
        header = struct.pack("<HHIQIIHHI", kind, 0x101, 64, size, 0, 0, 0, 0, arch)
        body += header.ljust(64, b"\0") + b"\xab" * size
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_dynamic_section(tmp_path):
    (tmp_path / "a.so").write_bytes(make_elf(["libx.so.1", "liby.so"], "liba.so.2", "$ORIGIN:/opt/lib"))
    assert elf.read_dynamic(tmp_path / "a.so") == elf.Dynamic(("libx.so.1", "liby.so"), "liba.so.2")


def test_needs_follow_bundled_libraries(tmp_path):
    (tmp_path / "libmxnet.so").write_bytes(make_elf(["libopenblas.so.0", "libgomp.so.1", "libc.so.6"]))
    (tmp_path / "libopenblas.so.0").write_bytes(make_elf(["libgfortran.so.3", "libc.so.6"]))
    (tmp_path / "libgfortran.so.3").write_bytes(make_elf(["libquadmath.so.0", "libopenblas.so.0"]))
    assert elf.external_needs(tmp_path / "libmxnet.so") == ("libgomp.so.1", "libc.so.6", "libquadmath.so.0")


def test_gpu_code_of_several_containers_with_padding(tmp_path):
    fatbin = fat_container((2, 50, 24), (2, 86, 8)) + bytes(16) + fat_container((2, 70, 128), (1, 70, 40))
    (tmp_path / "a.so").write_bytes(make_elf(["libcudart.so.11.0"], fatbin=fatbin))
    assert elf.gpu_code(tmp_path / "a.so") == elf.GpuCode(sm=(50, 70, 86), ptx=(70,))
    (tmp_path / "b.so").write_bytes(make_elf())
    assert elf.gpu_code(tmp_path / "b.so") == elf.GpuCode((), ())


@pytest.mark.parametrize("data", [b"", b"hello", b"\x7fELF\x01\x01" + bytes(100), b"MZ" + bytes(200)])
def test_what_is_no_elf_file_is_a_value_error(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    for read in (elf.read_dynamic, elf.gpu_code):
        with pytest.raises(ValueError, match="not a 64-bit little-endian ELF file"):
            read(tmp_path / "x")


def test_a_library_cut_off_anywhere_never_gives_another_error(tmp_path):
    whole = make_elf(["libx.so.1"], "liba.so", "$ORIGIN", fat_container((2, 70, 64)))
    for length in range(0, len(whole), 7):
        (tmp_path / "x").write_bytes(whole[:length])
        for read in (elf.read_dynamic, elf.gpu_code):
            try:
                read(tmp_path / "x")
            except ValueError:
                continue


def test_the_real_library():
    library = importing.mxnet_library()
    assert library is not None and library.name == "libmxnet.so"
    assert {"libstdc++.so.6", "libc.so.6"} <= set(elf.external_needs(library))


# -- importing


def test_mxnet_is_imported_and_a_plain_import_works_afterwards():
    code = """
import gluontune as gt
assert "mxnet" not in sys.modules
mx = gt.runtime.mxnet()
import mxnet
assert mxnet is mx and gt.runtime.mxnet() is mx
print(float((mx.nd.ones((2, 3)) * 2).sum().asscalar()))
"""
    assert run(code) == "12.0"


def fake_mxnet(folder, init="", needed=(), wheel="mxnet_cu112"):
    (folder / "mxnet").mkdir(parents=True)
    (folder / "mxnet" / "__init__.py").write_text(init)
    (folder / "mxnet" / "libmxnet.so").write_bytes(make_elf(needed))
    (folder / f"{wheel}-1.9.1.dist-info").mkdir()


ASK = """
from gluontune.core.errors import GluontuneError
from gluontune.runtime import mxnet
try:
    print("got", mxnet().answer)
except GluontuneError as error:
    print(error)
"""


def test_missing_cuda_libraries_are_named_with_their_wheels(tmp_path):
    # Versions that are installed nowhere, in the environment of a GPU machine neither.
    fake_mxnet(tmp_path, needed=("libcudnn.so.3", "libcublas.so.5", "libgomp.so.1"))
    said = run(ASK, tmp_path)
    assert said == (
        "mxnet-cu112 cannot load libcublas.so.5, libcudnn.so.3: pip install 'nvidia-cublas-cu11' 'nvidia-cudnn-cu11<9'"
    )


def test_a_driver_whose_library_is_hidden_says_what_to_do(tmp_path):
    fake_mxnet(tmp_path, needed=("libcuda.so.1",))
    # In a process of its own: in this one a build for GPUs may have loaded the stand-in.
    load = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]
    if subprocess.run(load, stderr=subprocess.DEVNULL, check=False).returncode:
        loaded = "from gluontune.runtime import cuda\ncuda.stand_in_possible = lambda: False\n"
        said = run(loaded + ASK, tmp_path)
        assert "libcuda.so.1" in said and "pip uninstall -y mxnet-cu112" in said
    else:  # a machine with a driver: then nothing is missing
        assert "libcuda.so.1" not in run(ASK, tmp_path)


@pytest.mark.skipif(not cuda.stand_in_possible(), reason="wants x86-64 without an NVIDIA driver")
def test_a_build_for_cuda_is_imported_where_no_driver_is(tmp_path):
    fake_mxnet(tmp_path, "import ctypes\nctypes.CDLL('libcuda.so.1')\nanswer = 42\n", needed=("libcuda.so.1",))
    assert run(ASK, tmp_path) == "got 42"


def test_libraries_of_pip_are_loaded_before_mxnet_asks(tmp_path):
    import numpy.fft._pocketfft_internal as extension  # any small library that can be loaded

    place = tmp_path / "nvidia" / "cudnn" / "lib"
    place.mkdir(parents=True)
    shutil.copy(extension.__file__, place / "libcudnn.so.8")
    # RTLD_NOLOAD answers only if the library is in the process already
    asks = f"ctypes.CDLL({str(place / 'libcudnn.so.8')!r}, mode=os.RTLD_NOLOAD)"
    fake_mxnet(tmp_path, f"import ctypes, os\n{asks}\nanswer = 42\n", needed=("libcudnn.so.8",))
    assert run(ASK, tmp_path) == "got 42"
    shutil.rmtree(tmp_path / "nvidia")
    assert "pip install 'nvidia-cudnn-cu11<9'" in run(ASK, tmp_path)


def test_many_threads_import_it_once(tmp_path):
    slow = "import time\ntime.sleep(0.3)\nopen(__file__ + '.count', 'a').write('x')\nanswer = 1\n"
    fake_mxnet(tmp_path, slow, wheel="mxnet")
    code = """
import threading
from gluontune.runtime import mxnet
found = []
threads = [threading.Thread(target=lambda: found.append(mxnet())) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(found), len(set(map(id, found))), found[0].answer)
"""
    assert run(code, tmp_path) == "8 1 1"
    assert (tmp_path / "mxnet" / "__init__.py.count").read_text() == "x"


def test_loading_order_is_fit_for_what_needs_what(tmp_path, monkeypatch):
    for folder, name in (
        ("cublas", "libcublas.so.11"),
        ("cublas", "libcublasLt.so.11"),
        ("cusparse", "libcusparse.so.11"),
        ("cusolver", "libcusolver.so.11"),
        ("cudnn", "libcudnn.so.8"),
    ):
        place = tmp_path / "nvidia" / folder / "lib"
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"")
    order = []
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    needed = ("libcudnn.so.8", "libcusolver.so.11", "libcublas.so.11", "libcuda.so.1", "libgomp.so.1")
    assert cuda.preload(needed, lambda name, fallback: order.append(name) or fallback is not None) == ["libcuda.so.1"]
    assert order == [
        "libcublasLt.so.11",
        "libcublas.so.11",
        "libcusparse.so.11",
        "libcusolver.so.11",
        "libcudnn.so.8",
        "libcuda.so.1",
    ]


def test_every_library_of_the_gpu_wheel_has_a_wheel_that_carries_it():
    of_cu112 = ["libcudnn.so.8", "libnccl.so.2", "libcudart.so.11.0", "libcufft.so.10", "libcublas.so.11"]
    of_cu112 += ["libcusolver.so.11", "libcurand.so.10", "libnvrtc.so.11.2", "libnvToolsExt.so.1"]
    assert all(cuda.family(name) for name in of_cu112)


def fake_numpy(monkeypatch, version):
    module = ModuleType("numpy")
    module.__version__ = version
    monkeypatch.setitem(sys.modules, "numpy", module)
    return module


@pytest.mark.parametrize("version", ["1.24.0", "1.26.4"])
def test_aliases_of_numpy_are_put_back(monkeypatch, version):
    module = fake_numpy(monkeypatch, version)
    importing._repair_numpy()
    assert (module.bool, module.int, module.float, module.object) == (bool, int, float, object)
    assert (module.complex, module.str) == (complex, str)


def test_numpy_that_has_them_is_left_alone(monkeypatch):
    module = fake_numpy(monkeypatch, "1.23.5")
    importing._repair_numpy()
    assert not hasattr(module, "bool")


def test_numpy_2_is_refused_with_the_command(monkeypatch):
    fake_numpy(monkeypatch, "2.1.0")
    with pytest.raises(GluontuneError, match=r"numpy 2\.1\.0 .* pip install 'numpy==1\.2"):
        importing._repair_numpy()


def test_distutils_on_python_3_12(monkeypatch):
    asked = []
    fake = SimpleNamespace(version_info=(3, 12, 1))
    monkeypatch.setattr(importing, "sys", fake)
    monkeypatch.setattr(importing.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importing.importlib, "import_module", asked.append)
    importing._repair_distutils()
    assert asked == ["setuptools", "distutils.version"]

    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importing.importlib, "import_module", absent)
    with pytest.raises(GluontuneError, match="pip install 'setuptools<81'"):
        importing._repair_distutils()
    fake.version_info = (3, 11, 0)
    importing._repair_distutils()


def test_mxnet_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "mxnet", None)
    with pytest.raises(GluontuneError, match=r"mxnet is not installed .*mxnet==1\.9\.1"):
        importing._import_mxnet()


def test_python_without_numpy_1(monkeypatch):
    monkeypatch.setattr(importing, "sys", SimpleNamespace(version_info=(3, 13, 0), prefix="/x"))
    with pytest.raises(GluontuneError, match=r"use Python 3\.9-3\.12"):
        importing._import_mxnet()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("libquadmath.so.0: cannot open shared object file: No such file"), "apt install libquadmath0"),
        (OSError("libnccl.so.2: cannot open shared object file"), "pip install 'nvidia-nccl-cu11'"),
        (ModuleNotFoundError("No module named 'distutils'", name="distutils"), "pip install 'setuptools<81'"),
        (ModuleNotFoundError("No module named 'graphviz'", name="graphviz"), "pip install 'graphviz'"),
        (RuntimeError("Cannot find the MXNet library.\nList of candidates:"), "holds no libmxnet.so"),
        (AttributeError("module 'mxnet' has no attribute 'x'"), "gluontune doctor"),
    ],
)
def test_what_an_import_error_means(error, words):
    message = str(importing.explain_import_error(error))
    assert words in message and len(message.splitlines()) <= 2


def test_a_failing_import_becomes_one_error(tmp_path):
    fake_mxnet(tmp_path, "raise ImportError('broken on purpose')", wheel="mxnet")
    assert "ImportError: broken on purpose" in run(ASK, tmp_path)


def test_importing_gluontune_runtime_is_light():
    code = "import gluontune.runtime, json; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(run(code))
    heavy = {"mxnet", "numpy", "matplotlib", "scipy", "pynvml", "psutil", "cv2", "typer", "rich"}
    assert not heavy & set(loaded)


def test_a_library_gets_another_name_and_nothing_else(tmp_path):
    path = tmp_path / "libx-0f0f.so.1.0.0"
    path.write_bytes(make_elf(["libc.so.6"], soname="libx-0f0f.so.1.0.0"))
    renamed = elf.with_soname(path, "libx.so.1")
    (tmp_path / "renamed").write_bytes(renamed)
    assert elf.read_dynamic(tmp_path / "renamed") == elf.Dynamic(("libc.so.6",), "libx.so.1")
    assert len(renamed) == path.stat().st_size
    with pytest.raises(ValueError, match="no room for the name"):
        elf.with_soname(path, "lib-of-a-much-longer-name.so.1")
    path.write_bytes(make_elf(["libc.so.6"]))
    with pytest.raises(ValueError, match="no name of its own"):
        elf.with_soname(path, "libx.so.1")


def test_what_needs_a_library_of_the_wheel_is_followed_into_its_folders(tmp_path):
    (tmp_path / "cv2.libs").mkdir()
    (tmp_path / "cv2.so").write_bytes(make_elf(["libwebp-1.so", "libc.so.6"]))
    (tmp_path / "cv2.libs" / "libwebp-1.so").write_bytes(make_elf(["libm.so.6"]))
    (tmp_path / "cv2.libs" / "libQt5.so").write_bytes(make_elf(["libGL.so.1"]))  # nobody asks for it
    needs = elf.external_needs(tmp_path / "cv2.so", [tmp_path / "cv2.libs"])
    assert needs == ("libc.so.6", "libm.so.6")


def test_several_libraries_are_taken_from_wheels(tmp_path):
    """The loader knows a file by its path: the second library must not come at the first one's."""
    import numpy

    [real] = (Path(numpy.__file__).parents[1] / "numpy.libs").glob("libquadmath*")
    (tmp_path / "some.libs").mkdir()
    wanted = ["libgomp.so.9", "libquadmath.so.9", "libgcc_s.so.9"]
    for name in wanted:
        stem = name.partition(".")[0]
        (tmp_path / "some.libs" / f"{stem}-0f0f.so.9.0.0").write_bytes(real.read_bytes())
    code = (
        "import ctypes, sys; from gluontune.runtime import elf; sys.path.append(sys.argv[1]); wanted = sys.argv[2:]\n"
        "print(len(elf.preload(wanted[:2])), len(elf.preload(wanted[2:])))\n"
        "for name in wanted: ctypes.CDLL(name)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), *wanted], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("2 1\n", 0), done.stderr


@pytest.mark.parametrize("place", ["numpy.libs/libquadmath-0f0f.so.9.0.0", "torch/lib/libquadmath.so.9"])
def test_a_library_that_the_system_lacks_is_taken_from_a_wheel(tmp_path, place):
    """In a process of its own: the real library of numpy's wheel under a name that no system has."""
    import numpy

    [real] = (Path(numpy.__file__).parents[1] / "numpy.libs").glob("libquadmath*")
    found = tmp_path / "site packages ü" / place
    found.parent.mkdir(parents=True)
    found.write_bytes(real.read_bytes())
    (found.parent / "libquadmath_but_another.so.9").write_bytes(b"")
    code = (
        "import ctypes, sys; from gluontune.runtime import elf; sys.path.append(sys.argv[1])\n"
        "assert elf.preload(['libc.so.6', 'libgomp.so.77']) == []\n"
        "print(*elf.preload(['libquadmath.so.9']), sep='\\n'); ctypes.CDLL('libquadmath.so.9')\n"
        "print(elf.preload(['libquadmath.so.9']))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "site packages ü")], capture_output=True,
                          text=True)  # fmt: skip
    if place.startswith("torch"):  # named as asked, but it calls itself otherwise: it is renamed, too
        assert elf.read_dynamic(found).soname != found.name
    assert done.stdout.splitlines() == [str(found), "[]"], done.stderr
