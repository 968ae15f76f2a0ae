"""What launcher and agent say to each other: one JSON object a line, behind a mark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["BEAT_S", "HOST_CUT_S", "LEASE_S", "LINK_SILENT_S", "Lines", "frame"]

BEAT_S = 1.0  # both sides give a sign of life so often
LINK_SILENT_S = 10.0  # the launcher takes a host that is silent for so long as cut off
HOST_CUT_S = 8.0  # hosts that cannot reach each other for so long are cut off, even if the launcher hears both
LEASE_S = 15.0  # an agent that hears nothing for so long ends all that it has started: the launcher is gone

_MARK = b"gluontune "  # login scripts print, too


def frame(message: Mapping[str, Any]) -> bytes:
    """One message as a line.

    >>> list(Lines().feed(b"Welcome to node2!\\n" + frame({"beat": 1})))
    [{'beat': 1}]
    """
    return _MARK + json.dumps(message).encode() + b"\n"


class Lines:
    """Cuts a stream of bytes into messages; ``noise`` keeps the lines that are none."""

    def __init__(self) -> None:
        self._rest, self.noise = bytearray(), ""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages that ``data`` completes."""
        self._rest += data
        while (end := self._rest.find(b"\n")) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            if line.startswith(_MARK):
                yield json.loads(line[len(_MARK) :])
            else:
                self.noise = (self.noise + line.decode("utf-8", "replace") + "\n")[-2000:]
