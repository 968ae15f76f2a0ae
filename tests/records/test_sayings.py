"""What verifying, repairing and reading tell of damaged files is what they told before."""

from __future__ import annotations

from itertools import islice, zip_longest

from record_sayings import SAID, sayings


def test_of_each_damage_is_said_what_was_said():
    told = SAID.read_text(encoding="utf-8").splitlines()
    changed = [f"- {wanted}\n+ {line}" for wanted, line in zip_longest(told, sayings()) if wanted != line]
    assert len(told) > 200 and not changed, (
        "\n".join(changed) + "\nif that is meant: python tests/trials/record_sayings.py writes it anew"
    )


def test_large_files_are_looked_at_in_pieces(monkeypatch):
    monkeypatch.setattr("gluontune.records.structure.CHUNK", 40)
    told = SAID.read_text(encoding="utf-8").splitlines()
    assert list(islice(sayings(), 60)) == told[:60]
