"""The catalogue and the page of messages: each entry of the registries, each line runs, each message is a real one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import gluontune as gt
from gluontune.cli._recipe import choices_of
from tools import catalogue

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = [(page, entry) for page, (_, _, makes) in catalogue.PAGES.items() for entry in makes()]
CALLS = [entry for _, entry in ENTRIES if "(" in entry.line]


def test_the_committed_pages_are_those_of_the_registries():
    folder = ROOT / "docs" / "catalogue"
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == catalogue.pages()


def test_a_changed_card_makes_its_page_stale(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["catalogue", "--check"])
    assert catalogue.main() == 0
    monkeypatch.setitem(catalogue.PAGES, "rungs", ("Rungs", "Another sentence.", catalogue.rungs))
    assert catalogue.main() == 1
    assert "docs/catalogue/rungs.md: out of date" in capsys.readouterr().out


@pytest.mark.parametrize("entry", [e for _, e in ENTRIES if e not in CALLS], ids=lambda entry: entry.line)
def test_a_command_of_the_catalogue_names_what_its_flag_takes(entry):
    _, _, flag, value, *_ = shlex.split(entry.line)
    value = value.replace(":PATH", "").split("=")[0]
    assert value in [name.replace(":PATH", "") for name in choices_of("method" if flag == "--methods" else flag)]


@pytest.fixture(scope="module")
def around():
    """What the calls of the catalogue stand in: a net that has each rewrite's layers, a batch, images."""
    mx = gt.runtime.mxnet()
    net = mx.gluon.model_zoo.vision.resnet18_v1(classes=10, thumbnail=True)
    net.initialize(mx.init.Xavier())
    batch = mx.nd.ones((2, 3, 32, 32))
    net(batch)
    return {"gt": gt, "net": net, "batch": batch, "split": gt.datasets.open("sample").test}


@pytest.mark.mxnet
@pytest.mark.parametrize("entry", CALLS, ids=lambda entry: entry.line)
def test_a_call_of_the_catalogue_runs(around, entry):
    names = dict(around)
    exec(entry.line, names)
    if "loader" in names:
        names["loader"].close()


def messages() -> list[tuple[str, str]]:
    """The heading and the message of each row of troubleshooting.md, where it has one."""
    found, heading = [], ""
    for line in (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif line.startswith("| `"):
            found.append((heading, re.findall(r"`([^`]*)`", line)[0]))
    return found


@pytest.mark.parametrize("message", [m for heading, m in messages() if heading == "gluontune"])
def test_a_message_of_ours_is_in_the_source(message):
    assert any(message in path.read_text(encoding="utf-8") for path in (ROOT / "gluontune").rglob("*.py"))


@pytest.mark.mxnet
@pytest.mark.parametrize("message", [m for heading, m in messages() if heading == "MXNet while it trains"])
def test_a_message_of_mxnets_is_in_mxnet(message):
    folder = Path(gt.runtime.mxnet().__file__).parent
    texts = (path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    if any(message in re.sub(r"""["']\s*\\?\s*["']""", "", text) for text in texts):  # over several lines
        return
    wanted, kept = message.split(": ")[-1].encode(), b""
    with open(folder / "libmxnet.so", "rb") as library:
        while part := library.read(1 << 24):
            if wanted in kept + part:
                return
            kept = part[-len(wanted) :]
    pytest.fail(f"MXNet does not say {message!r}")


def test_there_are_enough_messages_to_search():
    assert len(messages()) >= 25
