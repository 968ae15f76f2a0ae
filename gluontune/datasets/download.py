"""Downloads that go on where they stopped, and count only when their SHA-256 is right."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Callable

from gluontune.errors import GluontuneError
from gluontune.files import cache_dir, explain_os_error, parse_json, writable_folder
from gluontune.reading import read_text

__all__ = ["ResumingDownloader", "download"]

Progress = Callable[[int, int], None]
CHUNK = 1 << 16  # what a broken connection may lose of what came
TIMEOUT = 30  # seconds without a byte
TRIES = 3
LARGEST = 4 << 30


class ResumingDownloader:
    """A downloader for pooch that keeps an unfinished file and asks only for the rest.

    The rest is asked for with ``If-Range``, so that a file that changed on the server starts from its beginning.

    Args:
        part: where the unfinished file is kept between runs; ``part`` + ``.json`` remembers its version.
        progress: called with bytes done and bytes to do (0 if the server does not say).
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
                # Only a connection that brought something is worth another try at once.
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
            if response.status_code == 416:  # nothing is left to send, or the file is another one
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
        """Bytes that are there, and the version that they belong to."""
        try:
            note = parse_json(read_text(self.note))
            if note["url"] == url and note["version"]:
                return self.part.stat().st_size, note["version"]
        except (OSError, ValueError, KeyError, TypeError):
            pass
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
        url: where it is.
        sha256: its checksum.
        name: the data set, for the messages and the folder.
        what: what ``gluontune data add NAME …`` would take instead.
        progress: called with bytes done and bytes to do.

    Raises:
        GluontuneError: no network, another checksum, a full disk, … What came is kept for the next try,
            unless it is wrong.
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
    except ValueError as error:  # pooch's word for a checksum
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
