"""Downloads that resume and are accepted only with the right SHA-256; the data sets' folders in the cache."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.core.files import cache_dir, explain_os_error, writable_folder
from gluontune.core.reading import parse_json, read_text
from gluontune.records import RecordWriter

Progress = Callable[[int, int], None]


def records_folder(slug: str) -> Path | None:
    """The folder with ``train.rec`` and ``test.rec`` of a data set, or None."""
    folder = cache_dir() / slug / "records"
    there = all((folder / f"{part}.rec").is_file() for part in ("train", "test"))
    return folder if there else None


def files_of(info: Any, fetched: str, added: str) -> dict[str, Path]:
    """The record files of a fetched data set; ``fetched`` and ``added`` are words for the message."""
    folder = records_folder(info.name)
    if folder is None:
        raise GluontuneError(
            f"data set {info.name!r} is not in {cache_dir()}: run `gluontune data fetch {info.name}` "
            f"({info.bytes / 1e6:.0f} MB{fetched}),\nor `gluontune data add {info.name} {added}"
        )
    return {part: folder / f"{part}.rec" for part in ("train", "test")}


@contextlib.contextmanager
def filling(slug: str) -> Iterator[Path]:
    """A new folder that becomes the data set's ``records`` folder if the block ends well, and else is removed.

    Folders derived from an older one (``files``, ``packed``) are removed, too.
    """
    home = writable_folder(cache_dir() / slug)
    _sweep(home)
    beside = home / f".records-{os.getpid()}.part"
    final = home / "records"
    old = home / f".old-{os.getpid()}.part"
    try:
        try:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
            yield beside
            if final.exists():
                os.replace(final, old)
                for name in ("files", "packed"):
                    shutil.rmtree(home / name, ignore_errors=True)
            os.replace(beside, final)
        finally:
            for leftover in (beside, old):
                shutil.rmtree(leftover, ignore_errors=True)
    except OSError as error:
        raise explain_os_error(error.filename or home, error) from error


def _sweep(home: Path) -> None:
    """Remove folders of killed processes."""
    for part in home.glob(".*-*.part"):
        pid = part.name.split("-")[-1].split(".")[0]
        with contextlib.suppress(ValueError, OSError):
            if not Path("/proc").is_dir() or Path(f"/proc/{int(pid)}").exists():
                continue
            shutil.rmtree(part, ignore_errors=True)


def write_records(
    parts: Iterable[tuple[Path, Iterable[tuple[bytes, int]]]], total: int, progress: Progress, **options: Any
) -> None:
    """Write the encoded images and labels of each part to its record file; ``options`` are of the writer."""
    done = 0
    for path, images in parts:
        with RecordWriter(path, **options) as writer:
            for payload, label in images:
                writer.write(payload, label)
                done += 1
                progress(done, total)


def as_png(images: np.ndarray, workers: int = 2) -> Iterator[bytes]:
    """PNG files of uint8 (N, H, W) or (N, H, W, 3) RGB, in order, by OpenCV on threads."""
    import cv2

    def encode(pixels: np.ndarray) -> bytes:
        ok, data = cv2.imencode(
            ".png", pixels[:, :, ::-1] if pixels.ndim == 3 else pixels, [cv2.IMWRITE_PNG_COMPRESSION, 3]
        )
        if not ok:
            raise GluontuneError(f"OpenCV cannot encode an image of shape {pixels.shape} as PNG")
        return data.tobytes()

    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(images), 1000):
            yield from pool.map(encode, images[start : start + 1000])


CHUNK = 1 << 16  # lost at most by a broken connection
TIMEOUT = 30  # seconds without a byte
TRIES = 3
LARGEST = 4 << 30


class ResumingDownloader:
    """A downloader for pooch that resumes an unfinished file, ``part``; ``part`` + ``.json`` stores its version.

    The rest is requested with ``If-Range``, so that a file that changed on the server starts from its beginning.
    """

    def __init__(self, part: Path, progress: Progress = lambda done, total: None):
        self.part, self.progress = part, progress
        self.note = part.with_name(part.name + ".json")

    def __call__(self, url: str, output_file: Any, pooch: Any, check_only: bool = False) -> None:
        import requests

        for attempt in range(1, TRIES + 1):
            try:
                self._download(url)
                break
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                # Retry at once only a connection that delivered something.
                if attempt == TRIES or not self.part.is_file() or not self.part.stat().st_size:
                    raise
        os.replace(self.part, output_file)
        self.note.unlink(missing_ok=True)

    def _download(self, url: str) -> None:
        import requests

        have, version = self._kept(url)
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers.update({"Range": f"bytes={have}-", "If-Range": version})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == 416:  # nothing is left to send, or the file has changed
                self._forget()
                return self._download(url) if have else response.raise_for_status()
            response.raise_for_status()
            start = f"bytes {have}-"
            goes_on = response.status_code == 206 and response.headers.get("Content-Range", "").startswith(start)
            have = have if goes_on else 0
            length = response.headers.get("Content-Length", "")
            total = have + int(length) if length.isdecimal() else 0
            if total > LARGEST:
                raise GluontuneError(f"{url}: the server announces {total:,} bytes; this is not the file")
            self._remember(url, response.headers)
            with self.part.open("ab" if goes_on else "wb") as stream:
                for chunk in response.iter_content(CHUNK):
                    stream.write(chunk)
                    have += len(chunk)
                    self.progress(have, total)
                    if have > LARGEST:
                        raise GluontuneError(f"{url}: the server does not stop sending; this is not the file")
            if total and have != total:
                raise requests.ConnectionError(f"{have:,} of {total:,} bytes came")
        return None

    def _kept(self, url: str) -> tuple[int, str]:
        """The bytes of the unfinished file, and its version."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            note = parse_json(read_text(self.note))
            if note["url"] == url and note["version"]:
                return self.part.stat().st_size, note["version"]
        return 0, ""

    def _remember(self, url: str, headers: Any) -> None:
        tag = headers.get("ETag", "")
        version = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")
        self.note.write_text(json.dumps({"url": url, "version": version}), encoding="utf-8")

    def _forget(self) -> None:
        for path in (self.part, self.note):
            path.unlink(missing_ok=True)


def download(
    url: str, sha256: str, name: str, what: str = "ARCHIVE", progress: Progress = lambda done, total: None
) -> Path:
    """Download a file into the cache folder with pooch and check it.

    Args:
        name: the data set, for the messages and the folder.
        what: the argument of ``gluontune data add NAME …``, for the message. progress: of bytes done and in all.
    """
    import pooch
    import requests

    folder = writable_folder(cache_dir() / "downloads" / name)
    file = url.rsplit("/", 1)[-1]
    loader = ResumingDownloader(folder / f"{file}.part", progress)
    way_out = f"or bring the file here yourself and run `gluontune data add {name} {what}`"
    pooch.get_logger().setLevel("ERROR")
    try:
        return Path(pooch.retrieve(url, f"sha256:{sha256}", fname=file, path=folder, downloader=loader))
    except requests.HTTPError as error:
        code = error.response.status_code if error.response is not None else "an error"
        raise GluontuneError(
            f"{url}: the server answered {code}; try later or with --url MIRROR,\n{way_out}"
        ) from error
    except requests.RequestException as error:
        kept = loader.part.stat().st_size if loader.part.is_file() else 0
        again = (
            f"the same command goes on after the {kept:,} bytes that came,"
            if kept
            else "check the network and try again,"
        )
        raise GluontuneError(f"{url}: cannot download it ({_reason(error)}); {again}\n{way_out}") from error
    except ValueError as error:  # pooch's error for a wrong checksum
        with contextlib.suppress(OSError):
            loader._forget()
        raise GluontuneError(
            f"{url}: what came has not the SHA-256 {sha256[:16]}…: a broken transfer or another file; "
            f"it was thrown away. Try again or with --url MIRROR,\n{way_out}"
        ) from error
    except OSError as error:
        raise explain_os_error(error.filename or folder, error) from error


def _reason(error: Exception) -> str:
    text = str(error)
    for sign, meaning in (
        ("Name or service not known", "no such host: is there a network?"),
        ("Temporary failure in name resolution", "the host's name cannot be found: is there a network?"),
        ("Failed to resolve", "the host's name cannot be found: is there a network?"),
        ("refused", "connection refused"),
        ("timed out", "timed out"),
        ("unreachable", "network unreachable"),
    ):
        if sign in text:
            return meaning
    return f"{type(error).__name__}: the connection broke"
