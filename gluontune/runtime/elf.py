"""The needs of a shared library, read from its ELF headers without loading it.

Only the headers are read (a few KiB of a library of a gigabyte), which is quick and works for a library that cannot be
loaded here. Layouts: the System V ABI's ELF-64 chapter; the fat binary's two headers as ``cuobjdump --list-elf`` prints
them.

System libraries that MXNet's wheel lacks are loaded from other installed wheels: ``libmxnet.so`` needs
``libgomp.so.1`` and, for its Fortran library, ``libquadmath.so.0``, and a minimal Debian has neither. PyTorch's,
SciPy's and numpy's wheels carry both, mostly under another name (auditwheel adds a hash to the file and to its
``DT_SONAME``). The loader matches ``DT_SONAME``, so such a file is loaded from a copy in memory with the right name.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_SONAME = 1, 5, 14
_FATBIN_MAGIC, _PTX, _CUBIN = 0xBA55ED50, 1, 2


@dataclass(frozen=True)
class Dynamic:
    """The dynamic section: the needed libraries, and its own name."""

    needed: tuple[str, ...]
    soname: str | None = None


@dataclass(frozen=True)
class GpuCode:
    """GPU code in a library: machine code by architecture (``70`` is sm_70), and PTX by architecture."""

    sm: tuple[int, ...]
    ptx: tuple[int, ...]


@contextlib.contextmanager
def _image(path: str | os.PathLike[str]) -> Iterator[mmap.mmap]:
    """A context with the mapped file, which errors of reading its headers name."""
    with open(path, "rb") as stream:
        if os.fstat(stream.fileno()).st_size < 64:
            raise ValueError(f"{os.fspath(path)}: not a 64-bit little-endian ELF file")
        image = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    with image:
        if image[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{os.fspath(path)}: not a 64-bit little-endian ELF file")
        try:
            yield image
        except (struct.error, IndexError) as error:
            raise ValueError(f"{os.fspath(path)}: a damaged ELF file ({error})") from error


def _text(image: mmap.mmap, start: int) -> str:
    end = image.find(b"\0", start)
    if start >= len(image) or end < 0:
        raise ValueError("an ELF string lies outside the file: was it cut off?")
    return image[start:end].decode("utf-8", "replace")


def read_dynamic(path: str | os.PathLike[str]) -> Dynamic:
    """``DT_NEEDED`` and ``DT_SONAME`` of a 64-bit ELF file; raises ValueError for another or a cut file, or OSError."""
    with _image(path) as image:
        entries, strings = _entries(image)
        tags = (_DT_NEEDED, _DT_SONAME)
        values = {tag: [_text(image, strings + v) for t, v in entries if t == tag] for tag in tags}
    return Dynamic(tuple(values[_DT_NEEDED]), next(iter(values[_DT_SONAME]), None))


def with_soname(path: str | os.PathLike[str], soname: str) -> bytes:
    """The file's content with another ``DT_SONAME``, no longer than the present one; raises as :func:`read_dynamic`."""
    with _image(path) as image:
        entries, strings = _entries(image)
        if _DT_SONAME not in dict(entries):
            raise ValueError(f"{os.fspath(path)}: it has no name of its own")
        start = strings + dict(entries)[_DT_SONAME]
        old = _text(image, start)
        if len(soname) > len(old):
            raise ValueError(f"{os.fspath(path)}: {old} has no room for the name {soname}")
        return image[:start] + soname.encode().ljust(len(old), b"\0") + image[start + len(old) :]


def _entries(image: mmap.mmap) -> tuple[list[tuple[int, int]], int]:
    """The dynamic section's tags and values, and the offset of its strings in the file."""
    table, size, count = *struct.unpack_from("<Q", image, 32), *struct.unpack_from("<HH", image, 54)
    loads, dynamic = [], None
    for at in range(table, table + size * count, size):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", image, at)
        if kind == _PT_LOAD:
            loads.append((address, length, offset))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, length)
    if dynamic is None:
        return [], 0
    entries = []
    for at in range(dynamic[0], dynamic[0] + dynamic[1], 16):
        tag, value = struct.unpack_from("<qQ", image, at)
        if tag == 0:
            break
        entries.append((tag, value))
    address = dict(entries).get(_DT_STRTAB, 0)
    # the string table's address in the loaded image becomes an offset in the file
    return entries, next((o + address - a for a, n, o in loads if a <= address < a + n), address)


def external_needs(library: str | os.PathLike[str], folders: Iterable[Path] = ()) -> tuple[str, ...]:
    """The libraries that ``library`` needs from outside its folder and ``folders``, in the order of the search.

    The needs of bundled libraries, those in these folders, are included.
    """
    places = [Path(library).parent, *folders]
    waiting, seen, outside = [Path(library)], set(), []
    while waiting:
        for name in read_dynamic(waiting.pop(0)).needed:
            if name in seen:
                continue
            seen.add(name)
            bundled = next((place / name for place in places if (place / name).is_file()), None)
            waiting.append(bundled) if bundled else outside.append(name)
    return tuple(outside)


def gpu_code(library: str | os.PathLike[str]) -> GpuCode:
    """The GPU code of ``library``, from its ``.nv_fatbin`` section.

    A GPU of compute capability 9.0 needs ``sm_9x`` machine code, or PTX of at most 90, which the driver
    compiles; machine code for 8.6 does not run on it. Raises as :func:`read_dynamic`.
    """
    with _image(library) as image:
        section = _section(image, ".nv_fatbin")
        found = sorted(set(_fat_entries(image, *section))) if section else []
    return GpuCode(*(tuple(arch for kind, arch in found if kind == wanted) for wanted in (_CUBIN, _PTX)))


def holds(library: str | os.PathLike[str], words: Iterable[str]) -> list[str]:
    """The ``words`` that occur in the file (names of types and functions, messages)."""
    with _image(library) as image:
        return [word for word in words if image.find(word.encode()) >= 0]


def undefined(library: str | os.PathLike[str], pattern: str) -> list[str]:
    """The names that ``library`` takes from other libraries and that match ``pattern``, sorted."""
    with _image(library) as image:
        table, names = _section(image, ".dynsym"), _section(image, ".dynstr")
        if table is None or names is None:
            return []
        found = set()
        for at in range(table[0], table[0] + table[1], 24):  # Elf64_Sym
            name, _, _, home = struct.unpack_from("<IBBH", image, at)
            if home == 0 and name and re.fullmatch(pattern, text := _text(image, names[0] + name)):
                found.add(text)
        return sorted(found)


def missing_symbols(library: str | os.PathLike[str], provider: str | os.PathLike[str], mark: str) -> list[str]:
    """The undefined symbols of ``library`` with ``mark`` in their name that ``provider`` lacks."""
    with _image(provider) as other:
        known = _section(other, ".dynstr")
        strings = other[known[0] : known[0] + known[1]] if known else b""
    wanted = undefined(library, f".*{re.escape(mark)}.*") if known else []
    return [name for name in wanted if b"\0" + name.encode() + b"\0" not in strings]


def _section(image: mmap.mmap, wanted: str) -> tuple[int, int] | None:
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, names_index = struct.unpack_from("<HHH", image, 58)
    if not table or not count:
        return None
    (names,) = struct.unpack_from("<Q", image, table + size * names_index + 24)
    for at in range(table, table + size * count, size):
        (name,) = struct.unpack_from("<I", image, at)
        if _text(image, names + name) == wanted:
            return struct.unpack_from("<QQ", image, at + 24)  # type: ignore[return-value]
    return None


def _fat_entries(image: mmap.mmap, start: int, length: int) -> Iterator[tuple[int, int]]:
    """(kind, architecture) of each entry; reads only the headers' pages."""
    at, end = start, min(start + length, len(image))
    while at + 16 <= end:
        magic, _, header, body = struct.unpack_from("<IHHQ", image, at)
        if magic != _FATBIN_MAGIC:
            at += 8  # padding between containers
            continue
        entry, stop = at + header, min(at + header + body, end)
        while entry + 32 <= stop:
            kind, _, entry_header, size = struct.unpack_from("<HHIQ", image, entry)
            (arch,) = struct.unpack_from("<I", image, entry + 28)
            yield kind, arch
            entry += max(entry_header + size, 64)
        at = max(stop, at + 16)
        at += -(at - start) % 8


#: Start of the file name: Debian's package, and a wheel that carries it, or "".
SYSTEM_PACKAGES = {
    "libgomp.so": ("libgomp1", "scikit-learn"),
    "libquadmath.so": ("libquadmath0", "scipy"),
    "libstdc++.so": ("libstdc++6", ""),
    "libgcc_s.so": ("libgcc-s1", ""),
}


def find_in_wheels(name: str) -> Path | None:
    """The path of ``name`` (``libgomp.so.1``) in an installed wheel, under this name or with a hash, or None."""
    stem, _, version = name.partition(".so.")
    patterns = (f"torch/lib/{stem}*.so.{version}*", f"*.libs/{stem}*.so.{version}*")
    found = (file for folder in sys.path for pattern in patterns for file in sorted(Path(folder or ".").glob(pattern)))
    return next((file for file in found if file.name[len(stem)] in ".-"), None)


def preload(needed: Iterable[str]) -> list[str]:
    """Load libraries of ``needed`` that the system lacks and a wheel has, so that a later load by name succeeds.

    The loader is asked first: a system's library stays in use. Returns the loaded files.
    """
    taken = []
    for name in needed:
        if not name.startswith(tuple(SYSTEM_PACKAGES)) or load(name):
            continue
        source = find_in_wheels(name)
        if source is not None:
            with contextlib.suppress(OSError, ValueError):
                fits = read_dynamic(source).soname == name
                if load(source if fits else in_memory(with_soname(source, name), name)):
                    taken.append(os.fspath(source))
    return taken


def load(target: str | Path) -> bool:
    """Load a shared library, by name or path, for all that is loaded later. Returns whether that succeeded."""
    try:
        ctypes.CDLL(os.fspath(target), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def in_memory(content: bytes, name: str) -> str:
    """A path to load a shared library of this content from.

    Its descriptor stays open: the loader knows a file by its path, and would take the next library at the same number
    for this one.
    """
    memory = os.memfd_create(name)
    with open(memory, "wb", closefd=False) as stream:
        stream.write(content)
    return f"/proc/self/fd/{memory}"
