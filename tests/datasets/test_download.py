"""Downloads against a server on this machine: resumed, checked, and clear when they cannot work."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import re
import socket
import threading

import numpy as np
import pytest

import gluontune as gt
from gluontune.core.errors import GluontuneError
from gluontune.datasets import download as module
from gluontune.datasets.download import download

BODY = np.random.default_rng(0).integers(0, 256, 700_000, dtype=np.uint8).tobytes()
SHA = hashlib.sha256(BODY).hexdigest()


class Server:
    """Serves BODY and notes each request; can break off, ignore ranges, change the file, answer an error."""

    def __init__(self):
        self.requests, self.body, self.tag, self.status = [], BODY, '"one"', 200
        self.break_after, self.breaks, self.ranges = None, 0, True
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_GET(self):
                outer.serve(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/file.bin"
        self.thread = threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True)
        self.thread.start()

    def serve(self, handler):
        wanted = handler.headers.get("Range")
        self.requests.append(wanted)
        if self.status != 200:
            return handler.send_error(self.status)
        start = 0
        if wanted and self.ranges and handler.headers.get("If-Range") == self.tag:
            start = int(re.match(r"bytes=(\d+)-", wanted).group(1))
            if start >= len(self.body):
                return handler.send_error(416)
        rest = self.body[start:]
        handler.send_response(206 if start else 200)
        handler.send_header("ETag", self.tag)
        handler.send_header("Content-Length", str(len(rest)))
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        handler.end_headers()
        if self.break_after is not None and self.breaks > 0:
            self.breaks -= 1
            rest = rest[: self.break_after]
            handler.close_connection = True
        handler.wfile.write(rest)
        return None

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    with contextlib.closing(Server()) as server:
        yield server


def test_a_download_is_checked_and_reported(server, tmp_path):
    seen = []
    path = download(server.url, SHA, "toy", progress=lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "downloads" / "toy" / "file.bin" and path.read_bytes() == BODY
    assert seen[-1] == (len(BODY), len(BODY))
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]
    download(server.url, SHA, "toy")
    assert len(server.requests) == 1, "what is there is not downloaded again"


def test_a_broken_connection_goes_on_where_it_stopped(server):
    server.break_after, server.breaks = 300_000, 1
    assert download(server.url, SHA, "toy").read_bytes() == BODY
    first, second = server.requests
    assert first is None and re.fullmatch(r"bytes=\d{6}-", second)
    assert int(second[6:-1]) <= 300_000


def test_the_next_run_goes_on_too(server, tmp_path):
    server.break_after, server.breaks = 200_000, 99
    with pytest.raises(GluontuneError, match=r"goes on after the [\d,]+ bytes.*\n.*gluontune data add toy ARCHIVE"):
        download(server.url, SHA, "toy")
    assert len(server.requests) == module.TRIES
    kept = (tmp_path / "downloads" / "toy" / "file.bin.part").stat().st_size
    assert kept >= 400_000
    server.breaks = 0
    assert download(server.url, SHA, "toy").read_bytes() == BODY
    assert server.requests[-1] == f"bytes={kept}-"


def test_a_file_that_changed_on_the_server_starts_anew(server, tmp_path):
    server.break_after, server.breaks = 200_000, 3
    with pytest.raises(GluontuneError):
        download(server.url, SHA, "toy")
    server.tag, server.body = '"two"', BODY[::-1]
    path = download(server.url, hashlib.sha256(BODY[::-1]).hexdigest(), "toy")
    assert path.read_bytes() == BODY[::-1]


def test_a_server_without_ranges_starts_anew(server):
    server.break_after, server.breaks, server.ranges = 200_000, 1, False
    assert download(server.url, SHA, "toy").read_bytes() == BODY


def test_a_whole_part_that_was_never_renamed(server, tmp_path):
    folder = tmp_path / "downloads" / "toy"
    folder.mkdir(parents=True)
    (folder / "file.bin.part").write_bytes(BODY)
    (folder / "file.bin.part.json").write_text(f'{{"url": "{server.url}", "version": "\\"one\\""}}')
    assert download(server.url, SHA, "toy").read_bytes() == BODY


def test_another_checksum_is_refused_and_thrown_away(server, tmp_path):
    with pytest.raises(GluontuneError, match=r"has not the SHA-256 0{16}.*thrown away"):
        download(server.url, "0" * 64, "toy")
    assert list((tmp_path / "downloads" / "toy").iterdir()) == []


@pytest.mark.parametrize("status", [404, 503])
def test_a_server_that_answers_an_error(server, status):
    server.status = status
    with pytest.raises(GluontuneError, match=rf"the server answered {status}.*--url MIRROR"):
        download(server.url, SHA, "toy")


def test_an_endless_file_is_not_taken(server, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 100_000)
    with pytest.raises(GluontuneError, match="announces 700,000 bytes"):
        download(server.url, SHA, "toy")


def closed_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{s.getsockname()[1]}/file.bin"


def test_no_network_names_the_way_without_one(server):
    with pytest.raises(GluontuneError) as error:
        gt.datasets.fetch("cifar10", url=closed_port())
    text = str(error.value)
    assert "cannot download it (connection refused)" in text
    assert "gluontune data add cifar10 ARCHIVE" in text and len(text.splitlines()) <= 2


def test_no_such_host(server):
    with pytest.raises(GluontuneError, match="is there a network"):
        download("http://no-such-host.invalid/file.bin", SHA, "toy")


def test_a_full_disk(server, monkeypatch):
    def full(self, url):
        raise OSError(28, "No space left on device", str(self.part))

    monkeypatch.setattr(module.ResumingDownloader, "_download", full)
    with pytest.raises(GluontuneError, match=r"file\.bin\.part: the disk is full"):
        download(server.url, SHA, "toy")


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "downloads").write_text("in the way")
    with pytest.raises(GluontuneError, match="downloads"):
        download(server.url, SHA, "toy")


def test_fetch_downloads_takes_over_and_tidies_up(server, monkeypatch, tmp_path):
    from dataclasses import replace

    from gluontune.datasets import catalog, cifar10
    from gluontune.datasets.cifar10 import Layout

    table = np.zeros((20, 3073), np.uint8)
    table[:, 0] = np.repeat(np.arange(10), 2)
    import io
    import tarfile

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in ("data_batch_1.bin", "test_batch.bin"):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = table.size
            tar.addfile(member, io.BytesIO(table.tobytes()))
    server.body = packed.getvalue()
    small = Layout(batches=1, batch_rows=20, train_per_class=2, test_per_class=2)
    monkeypatch.setattr(cifar10.add, "__defaults__", (*cifar10.add.__defaults__[:-1], small))
    info = replace(catalog.DATASETS["cifar10"], sha256=hashlib.sha256(server.body).hexdigest())
    monkeypatch.setitem(catalog.DATASETS._entries, "cifar10", info)
    result = gt.datasets.fetch("cifar10", url=server.url)
    assert (result["kind"], result["num_train"], result["already"]) == ("official binary", 20, False)
    assert not list((tmp_path / "downloads" / "cifar10").iterdir())
    assert gt.datasets.fetch("cifar10", url=server.url)["already"] and len(server.requests) == 1
    assert not gt.datasets.fetch("cifar10", url=server.url, force=True)["already"]


def test_only_what_can_be_fetched_is():
    with pytest.raises(GluontuneError, match="nothing to fetch; `data fetch` knows fashion-mnist, cifar10"):
        gt.datasets.fetch("sample")
