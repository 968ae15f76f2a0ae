"""The process in which :mod:`tools.sanitize` runs the sanitized codec's cases.

``python -m tools.sanitized LIBRARY FOLDER SEED FIRST LAST``. Every buffer for the codec has exactly its declared
length, in a separate allocation, so that an access one byte beyond is detected.
"""

from __future__ import annotations

import ctypes
import io
import json
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.codec import native
from gluontune.codec.header import jpeg_header
from tools.sanitize import CASES

_MOST_PIXELS = 300_000  # of a case; larger ones are refused by their header
_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_libc.free.restype, _libc.free.argtypes = None, [ctypes.c_void_p]


class Memory:
    """A separate allocation of exactly ``size`` bytes, at ``at``."""

    def __init__(self, size: int, data: bytes | None = None):
        self.size, self.at = size, _libc.malloc(size)
        if data is not None:
            ctypes.memmove(self.at, data, size)

    def __del__(self) -> None:
        _libc.free(self.at)


def corpus() -> list[bytes]:
    """Small JPEG files of every kind: colour, grey, progressive, CMYK, restarts, Exif."""
    from PIL import Image

    rng, found = np.random.default_rng(5), []
    for height, width in ((8, 8), (1, 1), (17, 33), (64, 48), (97, 133), (1, 200), (120, 3)):
        noise = rng.integers(0, 256, (max(1, height // 4), max(1, width // 4), 3), np.uint8)
        image = Image.fromarray(noise).resize((width, height))
        exif = Image.Exif()
        exif[0x0112] = 6
        kinds: list[tuple[Any, dict[str, Any]]] = [(image, {"subsampling": s}) for s in (0, 1, 2)]
        kinds += [(image, {"progressive": True}), (image.convert("L"), {}), (image.convert("CMYK"), {})]
        kinds += [(image, {"exif": exif, "optimize": True}), (image, {"restart_marker_blocks": 2, "quality": 98})]
        for one, options in kinds:
            stream = io.BytesIO()
            one.save(stream, "JPEG", **{"quality": 85, **options})
            found.append(stream.getvalue())
    return found


def loud() -> bytes:
    """Random black and white pixels, whose encoding has a byte of 0xFF every few bytes."""
    from PIL import Image

    noise = np.random.default_rng(5).integers(0, 2, (150, 130, 3), np.uint8) * 255
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "JPEG", quality=100, subsampling=2)
    return stream.getvalue()


def damaged(rng: np.random.Generator, files: list[bytes]) -> bytes:
    """One of ``files``, or two of them spliced, with bytes changed, truncated, removed, inserted, or undamaged."""
    data = bytearray(files[rng.integers(len(files))])
    for _ in range(int(rng.choice([0, 1, 1, 2, 4, 12]))):
        if len(data) < 4:
            break
        kind, at = rng.integers(8), int(rng.integers(len(data)))
        if kind <= 2:  # in the header more often than in the pixels
            at = at if kind == 2 else int(rng.integers(min(len(data), 700)))
            data[at] = int(rng.choice([0, 1, 2, 0x11, 0x41, 0x7F, 0x80, 0xFF, rng.integers(256)]))
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            del data[at : at + int(rng.integers(1, 40))]
        elif kind == 5:
            data[at:at] = rng.bytes(int(rng.integers(1, 40)))
        elif kind == 6:
            data[at:] = files[rng.integers(len(files))][at:]
        else:  # the frame: sizes, sampling factors, number of components
            frame = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
            place = frame + int(rng.integers(4, 20))
            if frame >= 0 and place < len(data):
                data[place] = int(rng.choice([0, 1, 2, 3, 4, 0x11, 0x12, 0x21, 0x22, 0x41, 0x44, rng.integers(256)]))
    return bytes(data)


class Cases:
    """Runs the cases of a library."""

    def __init__(self, library: Any, folder: Path, seed: int):
        self.codec, self.folder, self.seed = library, folder, seed
        self.files, self.mine, self.loud = corpus(), threading.local(), loud()
        self.small = []  # upright, as in a data set of small images
        for data in self.files:
            header = jpeg_header(data)
            if max(header.height, header.width) <= 128 and header.orientation == 1:
                self.small.append(data)
        self.counts = {"made": 0, "refused": 0}
        self.lock = threading.Lock()
        library.gt_limit(_MOST_PIXELS)

    def one(self, number: int) -> None:
        """The case of this number: the same for the same seed."""
        rng = np.random.default_rng([self.seed, number])
        kind = int(rng.integers(10))
        works = (self.decode, self.alike, self.recode, self.records, self.gather, self.checksum)
        made = works[(0, 0, 0, 1, 1, 2, 2, 3, 4, 5)[kind]](rng)
        with self.lock:
            self.counts["made" if made else "refused"] += 1

    def handle(self) -> int:
        """A decoder for this thread, which reuses its memory from case to case, as in a loader."""
        if not hasattr(self.mine, "handle"):
            self.mine.handle, self.mine.owner = self.codec.gt_new(), _Owner(self.codec)
            self.mine.owner.handle = self.mine.handle
        return int(self.mine.handle)

    def headers(self, files: list[Memory]) -> np.ndarray:
        addresses = np.array([one.at for one in files], np.uintp)
        lengths = np.array([one.size for one in files], np.uintp)
        found = np.empty((len(files), 8), np.int32)
        self.codec.gt_headers(len(files), addresses.ctypes.data, lengths.ctypes.data, found.ctypes.data)
        return found

    def decode(self, rng: np.random.Generator) -> bool:
        """A batch: boxes within and beyond the image, at each scale, flipped, padded, colour or grey."""
        count = int(rng.integers(1, 5))
        files = [Memory(len(data), data) for data in (damaged(rng, self.files) for _ in range(count))]
        found = self.headers(files)
        height, width = (int(v) for v in rng.integers(1, 40, 2))
        channels, pad = int(rng.choice([1, 3])), int(rng.integers(0, 6))
        codes, boxes = np.full(count, native.UNSUPPORTED, np.int32), np.zeros((count, 4), np.int32)
        for k, (h, w, *_, code) in enumerate(found.tolist()):
            codes[k] = code
            if code == native.OK:
                top, left = int(rng.integers(-1, h + 1)), int(rng.integers(-1, w + 1))
                boxes[k] = (
                    [0, 0, h, w]
                    if rng.random() < 0.4
                    else [top, left, int(rng.integers(0, h + 2)), int(rng.integers(0, w + 2))]
                )
        eighths = rng.choice([8, 4, 2, 1], count).astype(np.int32)
        flips = rng.integers(0, 2, count).astype(np.uint8) if rng.random() < 0.5 else None
        offsets = rng.integers(0, 2 * pad + 1, (count, 2)).astype(np.int64) if pad and rng.random() < 0.5 else None
        return self.many(files, boxes, eighths, codes, flips, offsets, pad, (height, width, channels))

    def alike(self, rng: np.random.Generator) -> bool:
        """Small images with equal headers, decoded at their size; some are damaged behind the header."""
        data = self.small[rng.integers(len(self.small))]
        h = self.headers([Memory(len(data), data)])[0]
        files = []
        for _ in range(int(rng.integers(2, 12))):
            one, start = bytearray(data), int(h[5]) + 14
            for _ in range(int(rng.choice([0, 0, 0, 0, 0, 0, 1, 3]))):
                at = int(rng.integers(min(start, len(one) - 2), len(one) - 1))  # some are that small
                one[at : at + int(rng.integers(0, 3))] = rng.bytes(int(rng.integers(0, 4))).replace(b"\0", b"\xff")
            files.append(Memory(len(one), bytes(one)))
        count, pad = len(files), int(rng.choice([0, 1, 4, 16]))
        boxes, codes = (np.tile(np.array([0, 0, h[0], h[1]], np.int32), (count, 1)), self.headers(files)[:, 7].copy())
        flips = rng.integers(0, 2, count).astype(np.uint8) if rng.random() < 0.5 else None
        offsets = rng.integers(0, 2 * pad + 1, (count, 2)).astype(np.int64) if rng.random() < 0.6 else None
        shape = (int(h[0]), int(h[1]), int(rng.choice([1, 3])))
        return self.many(files, boxes, np.full(count, 8, np.int32), codes, flips, offsets, pad, shape)

    def many(
        self, files: list[Memory], boxes: np.ndarray, eighths: np.ndarray, codes: np.ndarray,
        flips: np.ndarray | None, offsets: np.ndarray | None, pad: int, shape: tuple[int, int, int],
    ) -> bool:  # fmt: skip
        count, (height, width, channels) = len(files), shape
        addresses = np.array([one.at for one in files], np.uintp)
        lengths = np.array([one.size for one in files], np.uintp)
        out = Memory(count * height * width * channels)
        self.codec.gt_decode_many(
            self.handle(), count, addresses.ctypes.data, lengths.ctypes.data, boxes.ctypes.data, eighths.ctypes.data,
            None if flips is None else flips.ctypes.data, None if offsets is None else offsets.ctypes.data,
            pad, height, width, channels, out.at, codes.ctypes.data,
        )  # fmt: skip
        return bool((codes == native.OK).any())

    def records(self, rng: np.random.Generator) -> bool:
        """Records in a damaged file: each byte of the results is read."""
        data = bytearray()
        starts = []
        for _ in range(int(rng.integers(1, 6))):
            labels, body = int(rng.choice([0, 0, 0, 2])), rng.bytes(int(rng.integers(0, 60)))
            record = labels.to_bytes(4, "little") + bytes(20 + 4 * labels) + body
            starts.append(len(data))
            data += b"\x0a\x23\xd7\xce" + len(record).to_bytes(4, "little") + record + bytes(-len(record) % 4)
        for _ in range(int(rng.choice([0, 1, 3]))):
            at = int(rng.integers(len(data)))
            data[at] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
        del data[int(rng.integers(len(data) // 2, len(data) + 1)) :]
        whole = Memory(len(data), bytes(data))
        offsets, ends = np.array(starts, np.int64), np.array([*starts[1:], len(data)], np.int64)
        places = rng.integers(0, len(starts), 8).astype(np.int64)
        found, lengths = np.empty(8, np.uintp), np.empty(8, np.uintp)
        self.codec.gt_records(8, whole.at, whole.size, offsets.ctypes.data, ends.ctypes.data, places.ctypes.data,
                              found.ctypes.data, lengths.ctypes.data)  # fmt: skip
        for address, length in zip(found.tolist(), lengths.tolist()):
            if length and not whole.at <= address <= address + length <= whole.at + whole.size:
                raise SystemExit(f"a record of {length} bytes beyond its file")
        return bool(lengths.any())

    def recode(self, rng: np.random.Generator) -> bool:
        is_loud = rng.random() < 0.1
        data = self.loud if is_loud else damaged(rng, self.files)
        one = Memory(len(data), data)
        if self.headers([one])[0, 7] != native.OK:
            return False
        result = (ctypes.c_size_t * 2)()
        side, crop, grey = int(rng.choice([0, 1, 7, 8, 16, 33, 64])), rng.random() < 0.5, rng.random() < 0.3
        quality = int(rng.choice([1, 50, 95, 100]))
        side, quality = (0, 100) if is_loud else (side, quality)
        given = ctypes.cast(one.at, ctypes.c_char_p)
        self.codec.gt_check(self.handle(), given, one.size)
        code = self.codec.gt_recode(self.handle(), given, one.size, side, crop, grey, quality, ctypes.byref(result))
        if code != native.OK:
            return False
        made = Memory(result[1], ctypes.string_at(result[0], result[1]))  # the result is read to its last byte
        return bool(self.headers([made])[0, 7] == native.OK)

    def gather(self, rng: np.random.Generator) -> bool:
        """Files into records, with enough or too little room."""
        paths: list[bytes] = []
        heads: list[bytes] = []
        sizes: list[int] = []
        for _ in range(int(rng.integers(1, 5))):
            path = self.folder / f"{threading.get_ident()}-{len(paths)}.jpg"
            path.write_bytes(damaged(rng, self.files))
            paths.append(str(path if rng.random() < 0.95 else self.folder).encode())
            sizes.append(24 + 4 * int(rng.integers(0, 4)))
            heads.append(rng.bytes(sizes[-1]))
        recoding = (ctypes.c_int * 4)(*rng.integers([1, 0, 0, 50], [40, 2, 4, 101]).tolist())
        smaller = ((self.handle(), ctypes.byref(recoding)), (self.handle(), None), (None, None))[rng.integers(3)]
        names, before = b"\0".join(paths) + b"\0", b"".join(heads)
        count, room = len(paths), int(rng.choice([64, 1000, 5000, 40_000]))
        given = Memory(len(names), names), Memory(len(before), before)
        out, results = Memory(room), np.empty((3, count), np.uint32)
        lengths = np.array(sizes, np.uint32)
        done = self.codec.gt_gather(
            *(ctypes.cast(one.at, ctypes.c_char_p) for one in given), lengths.ctypes.data, count,
            int(rng.integers(2)), *smaller, out.at, room, results[0].ctypes.data, results[1].ctypes.data,
            results[2].ctypes.data,
        )  # fmt: skip
        return bool(done)

    def checksum(self, rng: np.random.Generator) -> bool:
        data = rng.bytes(int(rng.integers(0, 700)))
        one = Memory(len(data), data)
        found = self.codec.gt_crc32(ctypes.cast(one.at, ctypes.c_char_p), one.size)
        if found != zlib.crc32(data):
            raise SystemExit(f"a wrong checksum of {len(data)} bytes: {found:#x}")
        return True

    def group(self, first: int) -> None:
        """Half of the cases in turn, half at once."""
        half = CASES // 2
        for number in range(first, first + half):
            self.one(number)
        failed: list[BaseException] = []

        def work(number: int) -> None:
            try:
                self.one(number)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(first + half + k,)) for k in range(half)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]


class _Owner:
    """Frees a thread's decoder when the thread ends."""

    handle = 0

    def __init__(self, library: Any):
        self.codec = library

    def __del__(self) -> None:
        if self.handle:
            self.codec.gt_free(self.handle)


def main() -> None:
    """Run the cases; their counts are the last line of stdout."""
    path, place, seed, first, last = sys.argv[1:]
    library = native.declare(ctypes.CDLL(path))
    if not any(library.gt_open(one.encode()) == native.OK for one in native.jpeg_libraries()):
        raise SystemExit("no libjpeg-turbo can be opened")
    folder = Path(place) / "files"
    folder.mkdir(exist_ok=True)
    cases = Cases(library, folder, int(seed))
    for group in range(int(first), int(last), CASES):
        (Path(place) / "at").write_text(str(group))
        cases.group(group)
    print(json.dumps(cases.counts))


if __name__ == "__main__":
    main()
