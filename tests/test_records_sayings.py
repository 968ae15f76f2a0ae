"""What verifying, repairing and reading tell of damaged files is what they told before."""

from __future__ import annotations

from record_sayings import SAID, sayings


def test_of_each_damage_is_said_what_was_said(monkeypatch):
    """A line that is meant to change is written anew by ``python tests/record_sayings.py``."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    told = SAID.read_text(encoding="utf-8").splitlines()
    assert [(wanted, line) for wanted, line in zip(told, sayings()) if wanted != line] == []
    assert len(told) > 200
