"""Untrusted archives of images, read from front to back, without unpacking to disk or unpickling.

Refused: links, devices and sparse files, absolute or climbing names, duplicate names, encrypted files, and absurd sizes
(declared or real, of one file, of the whole, against the archive's) or numbers.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Callable

from gluontune.core.errors import GluontuneError
from gluontune.core.reading import explain_os_error, open_regular


@dataclass(frozen=True)
class Limits:
    """Limits of an archive: members (folders included), unpacked bytes of one and of all (tar's blocks included), and
    unpacked bytes over the archive's (above the first 16 MiB).
    """

    files: int = 100_000
    file_bytes: int = 64 << 20
    total_bytes: int = 512 << 20
    ratio: float = 100.0


def members(path: Path, limits: Limits = Limits()) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Name and reader of each regular file, in the archive's order. A reader is valid until the next one."""
    with _explained(path), os.fdopen(open_regular(path), "rb") as stream:
        head = stream.read(512)
        stream.seek(0)
        guard = _Guard(path, limits)
        if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
            yield from _zip_members(guard, stream)
        else:
            yield from _tar_members(guard, _unpacked(stream, head))


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """A context that turns errors of archive readers into a GluontuneError."""
    try:
        yield
    except GluontuneError:
        raise
    except Exception as error:  # the readers raise a dozen kinds, from IndexError to MemoryError, on damaged bytes
        if isinstance(error, OSError) and error.errno is not None:  # gzip's and bzip2's own have none
            raise explain_os_error(path, error) from error
        reason = str(error) or type(error).__name__
        raise GluontuneError(f"{path}: not a whole tar or zip archive ({reason}); was the download cut off?") from error


class _Guard:
    """Checks of names, numbers and sizes, for tar and zip."""

    def __init__(self, path: Path, limits: Limits):
        self.path, self.limits = path, limits
        self.seen: set[str] = set()
        self.count = self.total = 0  # of members, and the bytes that they claim
        self.packed, self.real = path.stat().st_size, 0

    def refused(self, name: str, reason: str) -> GluontuneError:
        return GluontuneError(f"{self.path}: {name!r} {reason}; refused")

    def number(self, count: int) -> None:
        if count > self.limits.files:
            raise GluontuneError(f"{self.path}: more than {self.limits.files:,} files in it; refused")

    def member(self, name: str, size: int) -> None:
        self.count += 1
        self.number(self.count)
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or "\0" in name or name[1:2] == ":":
            raise self.refused(name, "climbs out of the archive's folder")
        if size > self.limits.file_bytes:
            raise self.refused(name, f"claims {size:,} bytes (limit {self.limits.file_bytes:,})")
        self.total += max(size, 0)
        if size < 0 or self.total > self.limits.total_bytes:
            raise GluontuneError(
                f"{self.path}: its files claim more than {self.limits.total_bytes:,} bytes unpacked; refused"
            )

    def once(self, name: str) -> None:
        if name in self.seen:
            raise self.refused(name, "is in the archive twice")
        self.seen.add(name)

    def inflated(self, count: int) -> None:
        """``count`` more bytes were unpacked."""
        self.real += count
        if self.real > self.limits.total_bytes:
            raise GluontuneError(f"{self.path}: unpacks to more than {self.limits.total_bytes:,} bytes; refused")
        if self.real > (16 << 20) and self.real > self.limits.ratio * max(self.packed, 1):
            raise GluontuneError(
                f"{self.path}: unpacks to more than {self.limits.ratio:g} times its size: an archive bomb; refused"
            )


class _StrictTarInfo(tarfile.TarInfo):
    """Refuses long headers of names and attributes, which are read whole into memory."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        extra = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)
        if self.type in (*extra, tarfile.SOLARIS_XHDTYPE) and not 0 <= self.size <= 65536:
            raise GluontuneError(f"{tar.name!s}: a header of {self.size:,} bytes in the archive; refused")
        return super()._proc_member(tar)  # type: ignore[misc]


def _tar_members(guard: _Guard, unpacked: Any) -> Iterator[tuple[str, Callable[[], bytes]]]:
    stream = io.BufferedReader(_Counted(guard, unpacked), 1 << 20)
    with tarfile.open(name=str(guard.path), fileobj=stream, mode="r|", tarinfo=_StrictTarInfo) as tar:
        for member in tar:
            guard.member(member.name, member.size)
            if member.isdir():
                continue
            if member.issym() or member.islnk():
                raise guard.refused(member.name, "is a link")
            if not member.isreg() or member.issparse():
                raise guard.refused(member.name, "is not a regular file")
            guard.once(member.name)
            yield member.name, lambda member=member: _read_tar(guard.path, tar, member)  # type: ignore[misc]
            tar.members = []  # type: ignore[attr-defined]  # tarfile stores every header


def _read_tar(path: Path, tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    with _explained(path):
        source = tar.extractfile(member)
        data = source.read() if source is not None else b""
    if len(data) != member.size:
        raise GluontuneError(f"{path}: cut off inside {member.name!r}; was the download cut off?")
    return data


class _Entries(list):  # type: ignore[type-arg]
    """The entries of a zip's directory, limited in number, since it is read whole."""

    def __init__(self, guard: _Guard):
        super().__init__()
        self.guard = guard

    def append(self, entry: zipfile.ZipInfo) -> None:
        self.guard.number(len(self) + 1)
        super().append(entry)


class _BoundedZip(zipfile.ZipFile):
    def __init__(self, guard: _Guard, stream: BinaryIO):
        self._entries = _Entries(guard)
        super().__init__(stream)

    def _RealGetContents(self) -> None:
        self.filelist = self._entries
        super()._RealGetContents()  # type: ignore[misc]


def _zip_members(guard: _Guard, stream: BinaryIO) -> Iterator[tuple[str, Callable[[], bytes]]]:
    def read(entry: zipfile.ZipInfo) -> bytes:
        with _explained(guard.path):
            try:
                with archive.open(entry) as source:
                    data = source.read(guard.limits.file_bytes + 1)
            except (NotImplementedError, RuntimeError) as error:
                raise GluontuneError(f"{guard.path}: {entry.filename!r} cannot be read: {error}") from error
        guard.inflated(len(data))
        if len(data) != entry.file_size:
            raise guard.refused(entry.filename, f"claims {entry.file_size:,} bytes and has another number")
        return data

    with _BoundedZip(guard, stream) as archive:
        for entry in archive.infolist():
            guard.member(entry.filename, entry.file_size)
            if entry.is_dir():
                continue
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if kind == stat.S_IFLNK:
                raise guard.refused(entry.filename, "is a link")
            if kind not in (0, stat.S_IFREG):
                raise guard.refused(entry.filename, "is not a regular file")
            if entry.flag_bits & 1:
                raise guard.refused(entry.filename, "is encrypted")
            guard.once(entry.filename)
            yield entry.filename, lambda entry=entry: read(entry)  # type: ignore[misc]


class _Counted(io.RawIOBase):
    """The bytes of an unpacking stream, counted against the limits."""

    def __init__(self, guard: _Guard, inner: Any):
        self._guard, self._inner = guard, inner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        self._guard.inflated(len(data))
        buffer[: len(data)] = data
        return len(data)


def _unpacked(stream: BinaryIO, head: bytes) -> Any:
    """The stream's reader by its first bytes; one that is not compressed is its own."""
    if head[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=stream)
    if head[:3] == b"BZh":
        return bz2.BZ2File(stream)
    if head[:6] == b"\xfd7zXZ\0":
        return _Xz(stream)
    return stream


class _Xz:
    """Reads xz within 256 MiB of memory, which ``lzma.LZMAFile`` does not limit."""

    def __init__(self, stream: BinaryIO):
        self._stream, self._rest = stream, b""
        self._inner = self._new()

    def _new(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=256 << 20)

    def read(self, wanted: int) -> bytes:
        while True:
            if self._inner.eof:  # another stream may follow, after padding of zeros
                self._rest = (self._inner.unused_data or self._rest).lstrip(b"\0")
                while not self._rest:
                    if not (more := self._stream.read(1 << 18)):
                        return b""
                    self._rest = more.lstrip(b"\0")
                self._inner = self._new()
            elif self._inner.needs_input and not self._rest:
                self._rest = self._stream.read(1 << 18)
                if not self._rest:
                    raise EOFError("it ends too early")
            data, self._rest = self._inner.decompress(self._rest, wanted), b""
            if data:
                return data
