"""The compiled JPEG decoder: a wheel's, or compiled on first use, or none.

``csrc`` decodes only the wanted region of a JPEG file and resizes it into the batch, in one call without the
interpreter's lock. It decodes baseline files (nearly all) by its own code if the processor has AVX2 and BMI2, in two
thirds of libjpeg-turbo's time and to the same bit; other files, and other processors, use libjpeg-turbo. Files that it
makes smaller it also encodes, byte for byte as libjpeg-turbo does.

A wheel has it compiled, with libjpeg-turbo in it. In a source tree, and in a wheel without it, it is compiled on first
use: that needs a C compiler once (``cc``, or zig's from the package index) and a libjpeg-turbo with region decoding
(1.5 or newer; Pillow's wheel has one). Without either, OpenCV decodes. ``GLUONTUNE_NATIVE=0`` switches it off.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import hashlib
import importlib.util
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gluontune.codec.building import SOURCES, compile_codec, compilers
from gluontune.codec.header import ImageError
from gluontune.codec.sizes import max_pixels

IN_WHEEL = "_compiled.so"  # beside this file, in a wheel
OK, BROKEN, TRUNCATED, UNSUPPORTED = range(4)

_lock = threading.Lock()
_loaded: list[Any] = []  # the library or None, after the search
_origin = ""


def load() -> Any:
    """The compiled library (a ``ctypes.CDLL``), or None. Searched once in a process."""
    with _lock:
        if not _loaded:
            _loaded.append(_find() if os.environ.get("GLUONTUNE_NATIVE", "1") != "0" else None)
        return _loaded[0]


def decoder_name() -> str:
    """The decoder of JPEG files in this process.

    >>> decoder_name() in ("our own and libjpeg-turbo, by regions", "libjpeg-turbo, by regions", "OpenCV")
    True
    """
    library = load()
    if library is None:
        return "OpenCV"
    return ("our own and " if library.gt_can_own() else "") + "libjpeg-turbo, by regions"


def why_not() -> str:
    """The reason why the compiled codec is missing, or "".

    ``switched off``, ``no libjpeg-turbo``, ``no C compiler`` or ``not compiled`` (a failed compiler, or no private
    folder).
    """
    if load() is not None:
        return ""
    if os.environ.get("GLUONTUNE_NATIVE", "1") == "0":
        return "switched off"
    if not any(True for _ in jpeg_libraries()):
        return "no libjpeg-turbo"
    return "not compiled" if compilers() else "no C compiler"


def origin() -> str:
    """The origin of the compiled codec and its libjpeg-turbo, or "".

    >>> bool(origin()) == (load() is not None)
    True
    """
    load()
    return _origin


def _find() -> Any:
    global _origin
    candidates = list(jpeg_libraries())
    in_wheel = Path(__file__).with_name(IN_WHEEL)
    for place, build in (("compiled in the wheel", lambda: in_wheel), ("compiled here", build_library)):
        built = build()
        library = None if built is None else open_library(built)
        if library is None:
            continue
        version = library.gt_linked().decode()
        opened = (path for path in candidates if library.gt_open(os.fsencode(path)) == OK)
        used = f"libjpeg-turbo {version}" if version else next(opened, "")
        if used:
            _origin = f"{place}, {used}"
            return library
    return None


def open_library(path: Path) -> Any:
    """The library at ``path`` with its functions declared, or None.

    Its libjpeg precedes any other: libmxnet has one, too, and Horovod makes libmxnet's names global.
    """
    try:
        return declare(ctypes.CDLL(str(path), mode=ctypes.DEFAULT_MODE | getattr(os, "RTLD_DEEPBIND", 0)))
    except (OSError, AttributeError):
        return None


def jpeg_libraries() -> Iterator[str]:
    """The libjpeg-turbo candidates: beside Pillow, in the environment, in the system."""
    spec = importlib.util.find_spec("PIL")
    if spec is not None and spec.origin:
        yield from map(str, sorted((Path(spec.origin).parent.parent / "pillow.libs").glob("libjpeg*.so*")))
    yield from map(str, sorted(Path(sys.prefix, "lib").glob("libjpeg.so*")))
    found = ctypes.util.find_library("jpeg")
    if found:
        yield found


def build_library(folder: Path | None = None) -> Path | None:
    """The compiled ``csrc``: from the cache, or compiled now; None without a working compiler or a libjpeg-turbo."""
    if not any(True for _ in jpeg_libraries()):
        return None
    key = hashlib.sha256(b"".join(s.read_bytes() for s in SOURCES) + platform.platform().encode()).hexdigest()[:16]
    places = [folder] if folder else [user_folder(), Path(tempfile.gettempdir()) / f"gluontune-{_user()}"]
    for place in places:
        final = place / f"native-{key}.so"
        if not is_private(place):
            continue
        if final.is_file() and is_ours(final):
            return final
        with contextlib.suppress(OSError):
            if compilers() and compile_library(final):
                return final
    return None


def user_folder() -> Path:
    """The user's cache of compiled code, wherever the data sets are."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "gluontune" / "native"


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def is_ours(path: Path) -> bool:
    """Whether no other user can have written ``path``, or have made a link of it: code is loaded from nowhere else."""
    link, status = path.lstat(), path.stat()
    return {link.st_uid, status.st_uid} <= {0, _user()} and not status.st_mode & 0o022


def is_private(folder: Path) -> bool:
    """Make a folder if it is missing; whether nobody else can put anything there, or exchange what is there."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return is_ours(folder)
    return False


def compile_library(final: Path) -> bool:
    """Compile beside and rename, so that two processes can do it at once."""
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=final.parent) as folder:
        made = Path(folder, final.name)
        if not compile_codec(made):
            made.chmod(0o700)
            made.replace(final)
            return True
    return False


def declare(library: Any) -> Any:
    """Declare the types of the functions."""
    c, i, n = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    for name, result, arguments in (
        ("gt_linked", ctypes.c_char_p, []),
        ("gt_open", i, [ctypes.c_char_p]),
        ("gt_new", c, []),
        ("gt_free", None, [c]),
        ("gt_message", ctypes.c_char_p, [c]),
        ("gt_can_own", i, []),
        ("gt_use", None, [c, i]),
        ("gt_baselines", i, [c]),
        ("gt_encodes", i, [c]),
        ("gt_recode", i, [c, ctypes.c_char_p, n, i, i, i, i, ctypes.POINTER(n * 2)]),
        ("gt_check", i, [c, ctypes.c_char_p, n]),
        ("gt_prepare", None, []),
        ("gt_crc32", ctypes.c_uint32, [ctypes.c_char_p, n]),
        ("gt_gather", i, [ctypes.c_char_p, ctypes.c_char_p, c, i, i, c, ctypes.POINTER(i * 4), c, n, c, c, c]),
        ("gt_limit", None, [ctypes.c_int64]),
        ("gt_header", i, [c, n, ctypes.POINTER(i * 7)]),
        ("gt_headers", None, [i, c, c, c]),
        ("gt_records", None, [i, c, n, c, c, c, c, c]),
        ("gt_decode_many", None, [c, i, c, c, c, c, c, c, i, i, i, i, c, c]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.gt_prepare()
    library.gt_limit(max_pixels())
    return library


_mine = threading.local()


class _State:
    """A thread's decoder."""

    def __init__(self, library: Any):
        self.codec = library
        self.handle = library.gt_new()
        self.result = (ctypes.c_size_t * 2)()

    def __del__(self) -> None:
        if self.handle:
            self.codec.gt_free(self.handle)


def thread_state() -> _State | None:
    """The codec and this thread's decoder; None without a compiled codec."""
    library = load()
    if library is None:
        return None
    state: _State | None = getattr(_mine, "state", None)
    if state is None:
        state = _mine.state = _State(library)
    return state if state.handle else None


def incomplete(data: bytes) -> str | None:
    """The reason why a JPEG file with an end marker is incomplete, so that decoders fill in grey; "" if it is whole.

    None: unknown, for other formats or without a compiled codec.
    """
    state = thread_state() if data[:3] == b"\xff\xd8\xff" else None
    if state is None:
        return None
    if state.codec.gt_check(state.handle, data, len(data)) == OK:
        return ""
    cause = state.codec.gt_message(state.handle).decode(errors="replace") or "premature end of its data"
    return f"incomplete image, grey from some row on ({cause})"


def recode_jpeg(
    data: bytes, side: int | None, *, crop: bool = False, grey: bool = False, quality: int = 95
) -> bytes | None:
    """Resize a JPEG file and encode it again, with chroma of half the size (4:2:0).

    The luma and chroma planes are decoded (at 1/2, 1/4 or 1/8 where that is enough), resized by a triangle filter
    as wide as the step (Pillow's ``BILINEAR``, torchvision's ``antialias=True``) and encoded, without a detour over
    RGB. Agrees with decoding to RGB, the same filter and ``cv2.imencode`` to about 40 dB.

    Args:
        data: an upright 8-bit JPEG file; see ``inspect``.
        side: pixels of the shorter side, at most that of the file; None: unchanged.
        crop: cut the middle square out after resizing.
        grey: drop the chroma.
        quality: 1 to 100.

    Returns:
        the file, or None without a compiled codec or for an unsupported file (CMYK, RGB, to be enlarged).

    Raises:
        ImageError: the image data are damaged or end early.
    """
    state = thread_state()
    if state is None:
        return None
    library = state.codec
    code = library.gt_recode(state.handle, data, len(data), side or 0, crop, grey, quality, ctypes.byref(state.result))
    if code == OK:
        return ctypes.string_at(state.result[0], state.result[1])
    if code == UNSUPPORTED:
        return None
    if code == TRUNCATED:
        raise ImageError("truncated JPEG (its data end early)")
    raise ImageError(f"cannot be decoded: {library.gt_message(state.handle).decode(errors='replace')}")
