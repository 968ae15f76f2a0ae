"""Compiling the codec: with libjpeg-turbo's headers and without, and what a build says where it cannot."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from gluontune.codec import building, native
from gluontune.codec.native import recode_jpeg
from tools import linked_codec

needs_compiler = pytest.mark.skipif(not building.compilers(), reason="wants a C compiler")
needs_own_compiler = pytest.mark.skipif(
    not building.compilers() or building.compilers()[0][0] == str(building.ZIG),
    reason="wants a C compiler of the system's own",
)
CSRC = building.SOURCES[0].parent


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    """The codec with libjpeg-turbo's own headers, where a build finds them."""
    out = tmp_path_factory.mktemp("linked") / native.IN_WHEEL
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CFLAGS", "-O0")  # for the sake of time
        said = linked_codec.compile_linked(out)
    if said:
        assert re.search(r"jpeglib\.h|-ljpeg|'jpeg'|another libjpeg|no C compiler", said), said
        pytest.skip("wants libjpeg-turbo's headers (Debian, Ubuntu: apt install libjpeg-dev)")
    return out


def photograph() -> bytes:
    noise = np.random.default_rng(3).integers(0, 256, (9, 12, 3), np.uint8)
    return cv2.imencode(".jpg", cv2.resize(noise, (150, 113), interpolation=cv2.INTER_CUBIC))[1].tobytes()


_IN_WHEEL = """
import sys
from pathlib import Path
from types import SimpleNamespace
from pathlib import Path
from gluontune.codec import native
native.__file__ = str(Path(sys.argv[1]) / "native.py")
native.compilers = lambda: []
from gluontune.codec.native import recode_jpeg
made = recode_jpeg(Path(sys.argv[2]).read_bytes(), 50)
print(native.origin())
sys.stdout.flush()
Path(sys.argv[2] + ".out").write_bytes(made or b"")
"""


def run_in_wheel(folder, tmp_path):
    """The origin that a process names whose wheel has brought ``folder``'s library, and the file it makes."""
    (tmp_path / "a.jpg").write_bytes(photograph())
    command = [sys.executable, "-c", _IN_WHEEL, str(folder), str(tmp_path / "a.jpg")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip(), (tmp_path / "a.jpg.out").read_bytes()


def shown(data: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).astype(int)


@needs_compiler
def test_the_wheels_library_is_taken_before_one_is_compiled(tmp_path):
    (tmp_path / "wheel").mkdir()
    assert building.compile_codec(tmp_path / "wheel" / native.IN_WHEEL, ["-O0"]) == ""
    origin, made = run_in_wheel(tmp_path / "wheel", tmp_path)
    assert origin.startswith("compiled in the wheel, ") and "libjpeg" in origin
    assert made == recode_jpeg(photograph(), 50)


@needs_compiler
def test_with_its_headers_it_is_the_same_codec(linked, tmp_path):
    origin, made = run_in_wheel(linked.parent, tmp_path)
    assert re.fullmatch(r"compiled in the wheel, libjpeg-turbo \d+\.\d+.*", origin)
    assert np.abs(shown(made) - shown(recode_jpeg(photograph(), 50))).mean() < 0.5


@needs_compiler
def test_a_wheels_library_that_does_not_load_is_passed_over(tmp_path):
    (tmp_path / native.IN_WHEEL).write_bytes(b"of another machine")
    origin, made = run_in_wheel(tmp_path, tmp_path)
    assert origin.startswith("compiled here, ") and made == recode_jpeg(photograph(), 50)


@needs_own_compiler
def test_another_libjpeg_is_refused(tmp_path, monkeypatch):
    include = tmp_path / "include"
    include.mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libjpeg.a").write_bytes(b"!<arch>\n")
    (include / "jpeglib.h").write_text("#define JPEG_LIB_VERSION 90\n")
    monkeypatch.setenv(linked_codec.PREFIX, str(tmp_path))
    assert "another libjpeg than libjpeg-turbo" in linked_codec.compile_linked(tmp_path / "out.so")


_ZIG = """#!/bin/sh
echo "$@" > "$SAID"
[ "$1 $2 $4" = "cc -target -mcpu=baseline" ] || exit 3
shift 4
PATH=%s
exec "$COMPILER" "$@"
"""


@needs_own_compiler
@pytest.mark.parametrize("is_there", [False, True], ids=["no compiler", "one that fails"])
def test_zigs_compiler_is_the_last_resort(tmp_path, monkeypatch, is_there):
    """The set-up brings it where there is none, or one without the C library's headers."""
    made = tmp_path / "out.so"
    zig = tmp_path / "a folder" / "zig"
    zig.parent.mkdir()
    zig.write_text(_ZIG % os.defpath)
    zig.chmod(0o755)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("COMPILER", building.compilers()[0][0])
    if is_there:
        (tmp_path / "bin" / "cc").write_text("#!/bin/sh\necho no stdlib.h >&2; exit 1\n")
        (tmp_path / "bin" / "cc").chmod(0o755)
    for name, value in {"SAID": str(tmp_path / "said"), "CC": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(building, "ZIG", zig)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert building.compile_codec(made, ["-O0"]) == ""
    assert "-mcpu=baseline" in (tmp_path / "said").read_text() and made.stat().st_size
    zig.unlink()
    assert building.compile_codec(made) == ("no stdlib.h" if is_there else "no C compiler")


@pytest.mark.skipif(not building.ZIG.is_file(),
                    reason="wants zig's C compiler (pip install 'ziglang<0.14')")  # fmt: skip
def test_zigs_codec_makes_the_same_bits(tmp_path, monkeypatch):
    (tmp_path / "wheel").mkdir()
    monkeypatch.setattr(building, "compilers", lambda every=building.compilers(): every[-1:])
    assert building.compile_codec(tmp_path / "wheel" / native.IN_WHEEL) == ""
    origin, made = run_in_wheel(tmp_path / "wheel", tmp_path)
    assert origin.startswith("compiled in the wheel, ") and made == recode_jpeg(photograph(), 50)
    assert (
        native.declare(ctypes.CDLL(str(tmp_path / "wheel" / native.IN_WHEEL))).gt_can_own()
        == native.load().gt_can_own()
    )


def test_what_the_compiler_says_comes_back(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "/bin/false")
    assert "/bin/false ended with code 1" in building.compile_codec(tmp_path / "out.so")
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    assert "none" in building.compile_codec(tmp_path / "out.so")
    assert linked_codec.linked_version(tmp_path / "out.so") == ""


@needs_compiler
def test_the_copied_structures_are_those_of_the_header(linked, tmp_path):
    """jpeg.h's copies, for the library that is opened at run time, beside the originals."""
    text = (CSRC / "jpeg.h").read_text(encoding="utf-8")
    copied = text[text.index("struct jpeg_error_mgr {") : text.index("enum { JCS_GRAYSCALE")]
    fields = []
    for name, body in re.findall(r"(?:struct (\w+)|typedef struct) \{(.*?)\n\}(?: \w+)?;", copied, re.S):
        body = re.sub(r"/\*.*?\*/|union \{.*?\}", "", body, flags=re.S)
        body = re.sub(r"\(\*(\w+)\)\([^;]*;", r"\1;", body)  # pointers to functions
        kind = f"struct {name}" if name else "jpeg_component_info"
        fields += [(kind, field) for field in re.findall(r"(\w+)(?:\[\d+\])?\s*[,;]", body)]
    assert len(fields) > 100
    lines = "".join(f'printf("{kind}.{field} %zu\\n", offsetof({kind}, {field}));' for kind, field in fields)
    program = tmp_path / "offsets.c"
    program.write_text(f'#include "jpeg.h"\nint main(void) {{{lines} return 0;}}\n')
    printed = []
    for flags in ([], ["-DGT_LINKED"]):
        compiler = building.compilers()[0]
        command = [*compiler, *flags, f"-I{CSRC}", "-o", str(tmp_path / "offsets"), str(program)]
        subprocess.run(command, check=True)
        ran = subprocess.run([str(tmp_path / "offsets")], capture_output=True, text=True, check=True)
        printed.append(ran.stdout.splitlines())
    assert printed[0] == printed[1]


@needs_compiler
def test_each_declared_function_is_there(tmp_path):
    assert building.compile_codec(tmp_path / "codec.so", ["-O0"]) == ""
    library = native.declare(ctypes.CDLL(str(tmp_path / "codec.so")))
    assert library.gt_linked() == b"" and library.gt_crc32(b"123456789", 9) == 0xCBF43926


def calls(sources):
    """Which C file calls which: by the functions that a file defines and others name, headers by what they include."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sources}
    homes = {
        name: file
        for file, text in texts.items()
        for name in re.findall(r"^(?!static)\w[\w *]*?\b(gt_\w+)\([^;{}]*\) \{", text, re.M)
        if file.endswith(".c")
    }
    graph = {}
    for file, text in texts.items():
        used = {homes[name] for name in re.findall(r"\b(gt_\w+)\(", text) if name in homes and file.endswith(".c")}
        graph[file] = {*used, *re.findall(r'#include "(\w+\.h)"', text)} - {file}
    return graph


def leads_back(graph):
    """The files from which a way leads back to themselves."""

    def reached(file):
        found, waiting = set(), [file]
        while waiting:
            new = graph.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    return sorted(file for file in graph if file in reached(file))


def test_no_c_files_call_or_include_each_other():
    graph = calls(building.SOURCES)
    assert graph["recode.c"] >= {"encode.c", "library.c", "codec.h"}
    assert leads_back(graph) == []
    assert leads_back({**graph, "encode.c": {"recode.c"}}) == ["encode.c", "recode.c"]


@pytest.mark.parametrize("fault", ["written by all", "another's link"])
def test_no_library_is_taken_from_a_folder_in_which_others_can_exchange_it(fault, tmp_path, monkeypatch):
    """The folder's name in /tmp is known: who makes it first may exchange what was looked at before it is loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    monkeypatch.setattr(native.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(native, "compilers", list)
    monkeypatch.setattr(native, "jpeg_libraries", lambda: iter(["libjpeg.so"]))
    place = tmp_path / f"gluontune-{os.getuid()}"
    assert native.build_library() is None and place.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(native.hashlib, "sha256", lambda _: SimpleNamespace(hexdigest=lambda: "0" * 64))
    library = place / f"native-{'0' * 16}.so"
    library.touch(0o600)
    assert native.build_library() == library
    if fault == "written by all":
        place.chmod(0o777)
    else:
        real = Path.lstat
        theirs = SimpleNamespace(st_uid=os.getuid() + 1)
        monkeypatch.setattr(Path, "lstat", lambda path: theirs if path == place else real(path))
    assert native.build_library() is None
