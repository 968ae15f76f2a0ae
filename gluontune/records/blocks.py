"""Images become blocks of framed records, on threads or in worker processes.

Decoding, encoding and the compiled codec release Python's lock: threads suffice. Without the codec, copying tiny files
is all Python, so each thread passes its blocks to a worker: a fresh interpreter (nothing is forked from a process that
may hold CUDA or MXNet) that ends with its input, so that none outlives a killed packer.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Callable, Union

from gluontune.codec.header import ImageError
from gluontune.codec.native import incomplete
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import Closing
from gluontune.core.forking import at_work
from gluontune.core.interpreter import python
from gluontune.core.reading import open_regular
from gluontune.records.layout import MAX_RECORD, frame, image_record
from gluontune.records.sources import Item
from gluontune.records.tarshards import place_of, read_member
from gluontune.records.transform import BulkCopier, Transform


@dataclass(frozen=True)
class Skip:
    """A skipped or incomplete image, with its position in the packing order."""

    position: int
    path: str
    reason: str


@dataclass
class Block:
    """Framed records of consecutive images, with the values for the side files."""

    data: Union[bytes, memoryview] = b""
    keys: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # framed
    lengths: list[int] = field(default_factory=list)
    crcs: list[int] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    incomplete: list[Skip] = field(default_factory=list)
    converted: int = 0
    count: int = 0

    def until(self, n: int) -> Block:
        """The first ``n`` images alone; none of them may have been skipped."""
        data = self.data[: sum(self.sizes[:n])]
        return Block(data, self.keys[:n], self.sizes[:n], self.lengths[:n], self.crcs[:n], count=n)


@at_work()
def make_block(
    items: list[Item],
    first: int,
    transform: Transform,
    gatherer: BulkCopier | None = None,
    stopped: Callable[[], bool] = lambda: False,
    check: bool = False,
) -> Block:
    """Read, transform and frame ``items``, the first of which has position ``first`` in the packing order.

    If ``stopped`` returns True, the unfinished block is returned, which nobody uses. ``check``: also check the data of
    copied files.
    """
    block = Block(count=len(items))
    pieces: list[Any] = []
    at = 0
    span = len(items) if gatherer is not None else 0
    while at < len(items) and not stopped():
        if gatherer is not None and span:
            gathered = gatherer.gather(items[at : at + span], transform, check)
            block.keys += [item.key for item in items[at : at + len(gathered.sizes)]]
            block.sizes += gathered.sizes
            block.lengths += gathered.lengths
            block.crcs += gathered.crcs
            block.converted += 0 if transform.copies else len(gathered.sizes)
            pieces.append(gathered.data)
            at += len(gathered.sizes)
            if len(gathered.sizes) == span:
                span *= 4
                continue
            span = 2 * len(gathered.sizes)  # few, or none, among images of other kinds
        if at < len(items):
            _add(block, pieces, items[at], first + at, transform, check)
            at += 1
    if len(pieces) == 1:
        block.data = pieces[0]
        return block
    block.data = b"".join(pieces)
    if gatherer is not None:
        for piece in pieces:
            gatherer.give_back(piece)
    return block


def _add(block: Block, pieces: list[Any], item: Item, position: int, transform: Transform, check: bool) -> None:
    try:
        data = _read_file(item.path)
        payload, changed = transform(data)
        record = image_record(payload, item.label, item.key)
        framed = frame(record)
    except (OSError, ImageError, UsageError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        block.skips.append(Skip(position, item.path, reason))
        return
    pieces.append(framed)
    block.keys.append(item.key)
    block.sizes.append(len(framed))
    block.lengths.append(len(record))
    block.crcs.append(zlib.crc32(record))
    block.converted += changed
    lacks = incomplete(data) if changed or check else None
    if lacks:
        block.incomplete.append(Skip(position, item.path, lacks))


def _read_file(path: str) -> bytes:
    """The content of a regular file or an archive's member, with few system calls for a small one."""
    place = place_of(path)
    if place is not None:
        return read_member(place)
    handle = open_regular(path)
    try:
        data = os.read(handle, 65536)
        if len(data) < 65536:
            return data
        if os.fstat(handle).st_size >= MAX_RECORD:
            raise ImageError(f"{os.fstat(handle).st_size:,} bytes: a record must be shorter than {MAX_RECORD:,}")
        pieces, size = [data], len(data)
        while data and size < MAX_RECORD:  # it may grow meanwhile
            data = os.read(handle, min(max(os.fstat(handle).st_size - size, 65536), MAX_RECORD))
            pieces.append(data)
            size += len(data)
        return b"".join(pieces)
    finally:
        os.close(handle)


def start_worker() -> subprocess.Popen[bytes]:
    """A process that runs :func:`serve`."""
    command = python("-c", "from gluontune.records.blocks import serve; serve()")
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


class BlockMaker(Closing):
    """Makes blocks on ``workers`` threads, in order, a few ahead."""

    def __init__(self, transform: Transform, workers: int, processes: bool, check: bool = False):
        self.transform, self.workers, self.processes, self.check = transform, workers, processes, check
        self._mine = threading.local()
        bulk = transform.copies or transform.recoding is not None
        self.gatherer = BulkCopier.find() if bulk and not processes else None
        self._children: list[subprocess.Popen[bytes]] = []
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="gluontune-pack")

    def blocks(self, jobs: Iterable[tuple[list[Item], int]]) -> Iterator[Block]:
        """Blocks in the order of ``jobs``; at most three a worker are unfinished or waiting."""
        ahead: deque[Future[Block]] = deque()
        for items, first in jobs:
            ahead.append(self._pool.submit(self._make, items, first))
            if len(ahead) >= 3 * self.workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def _make(self, items: list[Item], first: int) -> Block:
        if not self.processes:
            return make_block(items, first, self.transform, self.gatherer, self._stopped.is_set, self.check)
        child = getattr(self._mine, "child", None)
        if child is None:
            child = self._mine.child = start_worker()
            self._children.append(child)
        try:
            _send(child.stdin, (items, first, self.transform))
            answer = pickle.load(child.stdout)  # type: ignore[arg-type]  # of our own worker
        except (OSError, EOFError, pickle.UnpicklingError):
            code = child.wait()
            raise GluontuneError(f"a packing worker died (exit status {code}); go on with --resume") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def give_back(self, block: Block) -> None:
        """Release the memory of a written ``block`` for reuse."""
        if self.gatherer is not None:
            self.gatherer.give_back(block.data)

    def close(self) -> None:
        """Drop waiting blocks and end the workers, even in the middle of a block."""
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            with contextlib.suppress(OSError):
                child.stdin.close()  # type: ignore[union-attr]
            child.terminate()
        self._pool.shutdown(wait=True)
        for child in self._children:
            child.stdout.close()  # type: ignore[union-attr]
            child.wait()


def _send(stream: Any, value: Any) -> None:
    pickle.dump(value, stream, protocol=pickle.HIGHEST_PROTOCOL)
    stream.flush()


def serve() -> None:
    """A worker process: reads jobs from stdin and writes blocks to stdout, until stdin ends."""
    incoming: BinaryIO = sys.stdin.buffer
    outgoing: BinaryIO = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries must not mix with the answers
    while True:
        try:
            items, first, transform = pickle.load(incoming)
        except (EOFError, KeyboardInterrupt):
            return
        answer: Any
        try:
            answer = make_block(items, first, transform)
        except KeyboardInterrupt:
            return
        except BaseException as error:
            answer = GluontuneError(f"a packing worker failed: {type(error).__name__}: {error}")
        try:
            _send(outgoing, answer)
        except OSError:
            return
