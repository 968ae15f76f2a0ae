"""Strangers on the network: garbage where ranks meet."""

from __future__ import annotations

import socket

import pytest

from gluontune.training.meeting import Meeting


@pytest.mark.parametrize(
    "said",
    [b"[" * 3000 + b"\n", b'{"rank": Infinity, "world": 2}\n', b"7\n", b"\xff\n", b'{"rank": "x"}\n', b"x" * 5000],
)
def test_no_word_of_a_stranger_breaks_the_meeting_of_an_elastic_round(said):
    meeting = Meeting("127.0.0.1", [0], 2, "alike")
    mine, theirs = socket.socketpair()
    theirs.sendall(said)
    theirs.shutdown(socket.SHUT_WR)
    meeting._welcome(mine)
    assert meeting.ranks == {} and mine.fileno() == -1
    theirs.close()
    meeting.close()
