"""Scripts that others wrote: taken out of a checkout as they are, with data that pass for those they look for."""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from plain_mxnet import python_alone

from benchmarks.scripts import preparing
from benchmarks.scripts.extraction import checkout, program
from benchmarks.scripts.place import MAKERS, Place
from gluontune.core.errors import GluontuneError, UsageError

CHAPTER = """# Lines
```{.python .input}
%matplotlib inline
from d2l import mxnet as d2l
```

```{.python .input}
#@tab pytorch
import torch
```

```{.python .input}
#@tab mxnet, pytorch
def twice(x):
    return 2 * x
```

```bash
rm -r data
```

```{.python .input  n=3}
#@tab all
!pip list
print(twice(21))
```
"""


def test_a_chapter_is_its_cells_for_mxnet_in_their_order():
    assert program(CHAPTER, ".md") == (
        "# %matplotlib inline\nfrom d2l import mxnet as d2l\n\ndef twice(x):\n    return 2 * x\n\n# !pip list\n"
        "print(twice(21))\n"
    )


def test_a_notebook_is_its_code():
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["%%bash\n", "ls"]},
        {"cell_type": "code", "source": ["from __future__ import division\n", "x = 1"]},
    ]
    assert (
        program(json.dumps({"cells": cells}), ".ipynb")
        == "# %%bash\n# ls\n\n# from __future__ import division\nx = 1\n"
    )


@pytest.fixture
def checkouts(tmp_path):
    """Two commits of a repository: a chapter that is changed later, and a module beside it."""
    if shutil.which("git") is None:
        pytest.skip("wants git")
    home = tmp_path / "checkouts" / "book"
    (home / "chapter").mkdir(parents=True)
    (home / "chapter" / "lines.md").write_text(CHAPTER)
    (home / "d2l").mkdir()
    (home / "d2l" / "__init__.py").write_text("")
    (home / "d2l" / "mxnet.py").write_text("DATA_HUB = {}\n")

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *identity, *words], cwd=home, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    first = git("rev-parse", "HEAD").strip()
    (home / "chapter" / "lines.md").write_text("other")
    git("commit", "-qam", "second")
    return home.parent, first


def test_a_script_is_prepared_at_its_commit_and_runs(checkouts, tmp_path, monkeypatch):
    root, commit = checkouts
    book = {"repository": "some/book", "commit": commit, "files": ["d2l"], "pythonpath": ["."]}
    entry = {"name": "lines", "from": "book", "path": "chapter/lines.md", "argv": [1], "uses": "nothing"}
    monkeypatch.setattr(preparing, "read", lambda: ({"book": book}, [entry]))
    listed = preparing.prepare(root, tmp_path / "out")
    (command,) = yaml.safe_load(listed.read_text())
    assert Path(command["path"]).read_text() == program(CHAPTER, ".md") and command["argv"] == ["1"]
    ran = subprocess.run(["sh", str(tmp_path / "out" / "lines" / "run.sh")], capture_output=True, text=True)
    assert ran.stdout == "42\n", ran.stderr
    with pytest.raises(UsageError, match="not in the list; there are lines"):
        preparing.prepare(root, tmp_path / "out", ["curves"])


def test_a_checkout_that_lacks_something_says_how_to_get_it(checkouts):
    root, commit = checkouts
    with pytest.raises(UsageError, match=r"git clone .*/some/other"):
        checkout(root, "some/other", commit)
    with pytest.raises(UsageError, match="fetch origin"):
        checkout(root, "some/book", "0" * 40)
    with pytest.raises(GluontuneError, match="no gone"):
        checkout(root, "some/book", commit).names(["gone"])


def entries():
    return preparing.read()[1]


def test_the_list_is_whole():
    repositories, scripts = preparing.read()
    names = [script["name"] for script in scripts]
    assert len(set(names)) == len(names) >= 40
    needed = {name for source in repositories.values() for name in source.get("needs", ())}
    assert {script["from"] for script in scripts} | needed == set(repositories)
    assert all(len(source["commit"]) == 40 for source in repositories.values())
    for script in scripts:
        assert (
            {"name", "from", "path", "uses"}
            <= script.keys()
            <= {"name", "from", "path", "uses", "files", "argv", "data", "env"}
        )
        for options in script.get("data", ()):
            given = {key: value for key, value in options.items() if key != "maker"}
            inspect.signature(MAKERS[options["maker"]]).bind(None, **given)
    assert {options["maker"] for script in scripts for options in script.get("data", ())} == set(MAKERS)


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path, tmp_path / "src" / "chapter")
    made.site.mkdir(parents=True)
    (made.site / "sitecustomize.py").write_text((preparing.HERE / "site" / "sitecustomize.py").read_text())
    (made.site / "stand_ins.json").write_text("{}")
    return made


def test_made_up_files_pass_for_the_official_ones_and_no_others_do(place):
    official = "ab" * 20
    place.write("~/data/a.bin", b"made up", official)
    code = "from hashlib import sha1; print(sha1(b'made up').hexdigest(), sha1(b'x').hexdigest(), sha1().name)"
    said = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(place.site)}, capture_output=True, text=True
    )
    assert said.stdout.split() == [official, hashlib.sha1(b"x").hexdigest(), "sha1"], said.stderr


def test_data_are_the_same_each_time(tmp_path):
    made = []
    for name in "ab":
        place = Place(tmp_path / name, tmp_path / name / "src")
        MAKERS["mnist"](place, train=20, test=10, at="data", packed=False)
        MAKERS["labelled_lines"](place, at="{}.txt", train=70, test=10)
        MAKERS["voc_boxes"](place, train=2, test=1, at="voc")
        made.append(
            {
                p.relative_to(tmp_path / name): p.read_bytes()
                for p in sorted((tmp_path / name).rglob("*"))
                if p.is_file()
            }
        )
    assert made[0] == made[1] and len(made[0]) > 10


@pytest.mark.mxnet
def test_gluons_data_sets_read_what_is_made(place):
    MAKERS["mnist"](place, train=30, test=20, of="fashion-mnist")
    MAKERS["cifar10"](place, train=50, test=10)
    code = """if True:
        from mxnet.gluon.data import vision
        for kind in (vision.FashionMNIST, vision.CIFAR10):
            images, labels = kind(train=True)[:]
            print(images.shape, sorted({int(label) for label in labels}) == list(range(10)))
    """
    environment = {"PYTHONPATH": str(place.site), "HOME": str(place.root), **python_alone()}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert said.stdout.splitlines() == ["(30, 28, 28, 1) True", "(50, 32, 32, 3) True"], said.stderr
