"""The journal: pieces survive, resumes go on, what does not match is refused."""

from __future__ import annotations

import json

import pytest

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import write_json
from gluontune.core.journal import Journal
from gluontune.recipe import Recipe
from gluontune.runtime import machine_facts
from gluontune.search.study import Study


def fill(out, **more):
    with Journal(out, "bench x", {"rounds": 9}, machine_facts, **more) as journal:
        journal.keep("a", {"rate": 1.5, "of": (1, 2)})
        journal.keep("b", {"rate": 2})
    return journal


def test_pieces_survive_and_are_not_made_again(tmp_path):
    out = tmp_path / "x.json"
    fill(out)
    with Journal(out, "bench x", {"rounds": 9}, machine_facts, resume=True) as journal:
        assert journal.resumed == 2
        assert journal.piece("a", lambda: pytest.fail("made again")) == {"rate": 1.5, "of": [1, 2]}
        journal.piece("c", lambda: 3)
    with Journal(out, "bench x", {"rounds": 9}, machine_facts, resume=True) as journal:
        assert list(journal.pieces) == ["a", "b", "c"]


def test_a_line_that_was_cut_off_is_left_out_and_written_over(tmp_path):
    out = tmp_path / "x.json"
    path = fill(out).path
    path.write_bytes(path.read_bytes()[:-4])
    with Journal(out, "bench x", {"rounds": 9}, machine_facts, resume=True) as journal:
        assert list(journal.pieces) == ["a"]
        journal.keep("c", 3)
    for line in path.read_text().splitlines():
        json.loads(line)


def test_pieces_of_another_shape_are_told_as_a_fault_of_the_journal(tmp_path):
    """A resume uses them: a rate that is gone would be a KeyError, "a fault of gluontune's"."""
    out = tmp_path / "x.json"
    fill(out)
    with (
        pytest.raises(GluontuneError, match=r"x\.journal\.jsonl: altered.*KeyError: 'speed'"),
        Journal(out, "bench x", {"rounds": 9}, machine_facts, resume=True) as journal,
    ):
        journal.piece("a", dict)["speed"]
    with pytest.raises(KeyError), Journal(out, "bench x", {"rounds": 9}, machine_facts) as journal:
        journal.piece("a", dict)["speed"]  # it was made now: who asks for it is at fault


@pytest.mark.parametrize(
    ("change", "told", "kind"),
    [
        ({"kind": "bench y"}, "is of bench y", GluontuneError),
        ({"given": {"rounds": 3}}, "rounds: then 3, now 9", UsageError),
        ({"versions": {"mxnet": "1.8"}}, "mxnet: then '1.8'", GluontuneError),
        ({"machine": {"cpu": "Z80"}}, "another machine", GluontuneError),
        ({"journal": 99}, "not a journal of this version", GluontuneError),
    ],
)
def test_what_does_not_match_is_refused(tmp_path, change, told, kind):
    out = tmp_path / "x.json"
    path = fill(out).path
    header, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(header), **change}), *rest]) + "\n")
    with pytest.raises(kind, match=told):
        Journal(out, "bench x", {"rounds": 9}, machine_facts, resume=True)


def test_a_resume_where_nothing_is_begins(tmp_path):
    begun = Journal(tmp_path / "x.json", "bench x", {}, machine_facts, resume=True)
    assert begun.resumed == 0 and begun.path.stat().st_size
    begun.close()
    with pytest.raises(UsageError, match="--out FILE"):
        Journal(None, "bench x", {}, machine_facts, resume=True)


def test_a_new_run_keeps_the_old_journal_beside(tmp_path):
    out = tmp_path / "x.json"
    fill(out)
    with Journal(out, "bench x", {"rounds": 3}, machine_facts) as journal:
        assert not journal.pieces
    assert '"b"' in (tmp_path / "x.journal.previous.jsonl").read_text()


def test_two_runs_do_not_write_one_journal(tmp_path):
    out = tmp_path / "x.json"
    with Journal(out, "bench x", {}, machine_facts), pytest.raises(UsageError, match="another run is writing"):
        Journal(out, "bench x", {}, machine_facts)


def test_not_a_number_is_refused_before_it_is_written(tmp_path):
    journal = Journal(tmp_path / "x.json", "bench x", {}, machine_facts)
    with pytest.raises(ValueError, match="JSON"):
        journal.keep("a", float("nan"))
    journal.close()
    assert not Journal(tmp_path / "x.json", "bench x", {}, machine_facts, resume=True).pieces


def test_a_recipe_that_has_gained_a_field_since_is_taken_up_at_its_default(tmp_path):
    recipe = Recipe(epochs=2.0)
    given = {"recipe": recipe.to_dict(), "recipes": {"ours": {**recipe.to_dict(), "seed": None}}}
    old = Study("tta", 1, given, tmp_path, resume=False)
    old.enter({"name": "first"})
    del old.document["given"]["recipe"]["accumulate"], old.document["given"]["recipes"]["ours"]["accumulate"]
    write_json(old.path, old.document)
    assert Study("tta", 1, given, tmp_path, resume=True).document["done"] == [{"name": "first"}]
    other = {**given, "recipe": recipe.override(accumulate=2).to_dict()}
    with pytest.raises(UsageError, match="recipe accumulate: then 1, now 2"):
        Study("tta", 1, other, tmp_path, resume=True)
