"""Reads a ladder's rendered page and its JSON, and finds any two statements of one quantity that differ."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from gluontune.report.formatting import PHASES, RUNG_TEXTS

_VOID = {"meta", "link", "img", "br", "hr", "input", "base", "source", "use"}
_DEVICE = ("forward", "backward", "update")
_NUMBER = r"-?[\d,]*\.?\d+"
_TIMES = rf"({_NUMBER})×(?: \(95 %: ({_NUMBER})–({_NUMBER})\))?"
_DURATION = r"(?:\d+ h(?: \d+ min)?|\d+ min(?: \d+ s)?|[\d.]+ s)"


@dataclass
class Node:
    """An element of the page."""

    tag: str
    attributes: dict[str, str]
    inside: list[Any] = field(default_factory=list)

    def all(self, tag: str, cls: str = "") -> list[Node]:
        found = []
        for each in self.inside:
            if isinstance(each, Node):
                if each.tag == tag and cls in [*each.attributes.get("class", "").split(), ""]:
                    found.append(each)
                found += each.all(tag, cls)
        return found

    def text(self) -> str:
        parts = [each if isinstance(each, str) else each.text() for each in self.inside]
        return re.sub(r"\s+", " ", " ".join(parts).replace("\u00a0", " ")).strip()

    def own(self) -> str:
        """The text without that of ``small`` elements."""
        parts = [e if isinstance(e, str) else e.own() for e in self.inside if isinstance(e, str) or e.tag != "small"]
        return re.sub(r"\s+", " ", " ".join(parts).replace("\u00a0", " ")).strip()


class _Tree(HTMLParser):
    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.stack = [Node("root", {})]
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.stack[-1].inside.append(node)
        if tag not in _VOID:
            self.stack.append(node)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.stack[-1].inside.append(Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.stack[-1].inside.append(data)


class Statements:
    """What a page says of each quantity: an interval that rounding leaves, or a word."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str], list[tuple[float, float, str]]] = defaultdict(list)
        self.words: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        self.wrong: list[str] = []

    def number(self, what: str, of: str, text: str | None, where: str, scale: float = 1.0) -> None:
        """A number as it is written: it stands for all that rounds to it."""
        if text and text != "—":
            value, digits = float(text.replace(",", "")), len(text.partition(".")[2])
            rounding = 0.5 * 10**-digits
            if "." not in text and abs(value) >= 1000:
                rounding = 0.51
            self.numbers[what, of].append((scale * (value - rounding), scale * (value + rounding), f"{where}: {text}"))

    def exact(self, what: str, of: str, value: float | None, where: str) -> None:
        if value is not None:
            self.numbers[what, of].append((value, value, f"{where}: {value:.6g}"))

    def seconds(self, what: str, of: str, text: str | None, where: str) -> None:
        if text:
            found = {unit: float(n) for n, unit in re.findall(r"([\d.]+) (h|min|s)\b", text)}
            whole = 3600 * found.get("h", 0) + 60 * found.get("min", 0) + found.get("s", 0)
            rounding = 31.0 if "h" in found else 0.051 if "." in text else 0.51
            self.numbers[what, of].append((whole - rounding, whole + rounding, f"{where}: {text}"))

    def word(self, what: str, of: str, value: str, where: str) -> None:
        self.words[what, of].append((value, where))

    def ratio(self, what: str, of: str, found: tuple[str | None, ...], where: str) -> None:
        """A ratio, and its interval if it has one."""
        for part, text in zip(("", " low", " high"), found):
            self.number(what + part, of, text, where)

    def contradictions(self) -> Iterator[str]:
        yield from self.wrong
        for (what, of), found in self.numbers.items():
            if not found:
                continue
            low, high = max(found), min(found, key=lambda each: each[1])
            slack = 1e-9 + 1e-6 * abs(low[0])
            if low[0] > high[1] + slack:
                yield f"{what} of {of}: {high[2]}, but {low[2]}"
        for (what, of), said in self.words.items():
            first = said[0]
            for value, where in said[1:]:
                if value != first[0]:
                    yield f"{what} of {of}: {first[1]}: {first[0]}, but {where}: {value}"


def contradictions(html: str) -> list[str]:
    """Each pair of statements that differ, and each statement that its own row contradicts, as a sentence."""
    tree = _Tree(html).stack[0]
    data = json.loads(next(s for s in tree.all("script") if s.attributes.get("id") == "gluontune-data").inside[0])
    (ladder,) = data["ladders"].values()
    article = tree.all("article")[0]
    found = Statements()
    _json(found, ladder)
    _tiles(found, article, ladder)
    _rungs(found, article, ladder)
    _figures(found, article)
    _variants(found, article, ladder)
    _sentences(found, article, ladder)
    _advice(found, article, ladder)
    _files(found, article, ladder)
    _columns(found, article)
    _agree(found, ladder)
    return list(dict.fromkeys(found.contradictions()))


def _json(found: Statements, ladder: Mapping[str, Any]) -> None:
    for row in ladder["rungs"]:
        name, speed, before = row["name"], row["samples_per_sec"], deciding(row)
        for what, measured in (("rate", speed), ("before", before), ("speed before", row["ratio_to_previous"])):
            if measured:
                found.exact(what, name, measured["median"], "JSON")
                for side, value in zip((" low", " high"), measured.get("ci95") or ()):
                    found.exact(what + side, name, value, "JSON")
        found.exact("gain", name, row["speedup_vs_naive"], "JSON")
        for side, value in zip((" low", " high"), row.get("speedup_ci95") or ()):
            found.exact("gain" + side, name, value, "JSON")
        if row["val_accuracy"]:
            found.exact("accuracy", name, row["val_accuracy"][-1], "JSON")
        for phase, share in row["phases_pct"].items():
            found.exact(f"share of {phase}", name, share, "JSON")
        if row["predicted"]:
            found.exact("prediction", name, row["predicted"]["samples_per_sec"], "JSON")
        chosen = next((v for v in row["variants"] if v["chosen"]), None)
        if chosen is not None:
            guess = (chosen.get("predicted") or {}).get("samples_per_sec")
            found.word("predicted", name, str(guess), "JSON, the chosen variant")
            found.word("predicted", name, str((row["predicted"] or {}).get("samples_per_sec")), "JSON, the rung")
            found.word("changes", name, _fields(chosen["changes"]), "JSON, the chosen variant")
            found.word("changes", name, _fields(row["changes"]), "JSON, the rung")
        if row["recipe"] and "epochs" in row["recipe"]:
            found.exact("epochs", name, row["recipe"]["epochs"], "JSON, the recipe")
            for label in [chosen["label"]] if chosen and "epochs" in chosen["changes"] else []:
                said = re.findall(rf"({_NUMBER}) epochs?\b", label)
                for each in said:
                    found.number("epochs", name, each, f"JSON, the label {label!r}")
    best = ladder["best"] or {}
    if best.get("samples_per_sec"):
        found.exact("rate", "best", best["samples_per_sec"]["median"], "JSON")
        found.exact("gain", "best", best["speedup_vs_naive"], "JSON")
    if (best.get("recipe") or {}).get("epochs"):
        found.exact("epochs", "best", best["recipe"]["epochs"], "JSON")
    if ladder.get("budget"):
        found.exact("seconds", "the climb", ladder["budget"]["spent_seconds"], "JSON")
    proof = ladder.get("proof") or {}
    if proof:
        found.exact("target", "the proof", proof["target"], "JSON")
        for name, seconds in proof["seconds"].items():
            found.exact("seconds to the target", name, seconds, "JSON")
        if proof["ratio"]:
            found.exact("proof", "best", proof["ratio"]["median"], "JSON")
            if len(proof["pairs"]) < 2 and proof["ratio"]["ci95"]:
                found.wrong.append("JSON: the proof has an interval and one training of each")


def deciding(row: Mapping[str, Any]) -> Any:
    """The ratio that a rung was judged by."""
    return (row.get("seconds_to_accuracy") or {}).get("ratio") or row["ratio_to_previous"]


def _fields(changes: Mapping[str, Any]) -> str:
    return json.dumps(changes, sort_keys=True)


def _tiles(found: Statements, article: Node, ladder: Mapping[str, Any]) -> None:
    for tile in (div for box in article.all("div", "tiles") for div in box.all("div")):
        name, value, remark = (next(iter(tile.all(tag)), Node(tag, {})).text() for tag in ("span", "b", "small"))
        if name in ("naive", "best"):
            found.number("rate", name, value.split()[0], f"tile {name!r}")
        if name.startswith("accuracy after"):
            number = re.match(rf"({_NUMBER}) %", value)
            found.number("accuracy", "best", number and number[1], f"tile {name!r}", 0.01)
            said = re.match(rf"naive ({_NUMBER}) %", remark)
            found.number("accuracy", "naive", said and said[1], f"tile {name!r}", 0.01)
            epochs = re.search(rf"after ({_NUMBER}) epoch", name)
            found.number("epochs", "best", epochs and epochs[1], f"tile {name!r}")
        if took := re.match(rf"in ({_DURATION})", remark):
            found.seconds("seconds", "the climb", took[1], f"tile {name!r}")
        if name == "rungs that ran":
            ran = sum(row["status"] == "ran" for row in ladder["rungs"])
            found.word("rungs", "the climb", f"{ran} of {len(ladder['rungs'])}", "JSON")
            found.word("rungs", "the climb", value, f"tile {name!r}")


def _cells(row: Node, head: list[str]) -> dict[str, Node]:
    return dict(zip(head, [each for each in row.inside if isinstance(each, Node)]))


def _table(article: Node, first: str) -> list[tuple[str, list[dict[str, Node]], list[str]]]:
    """Tables whose first column has this name: their title, rows and remarks."""
    shown = []
    for part in article.all("section"):
        title = ""
        for node in _flat(part):
            if node.tag == "h3":
                title = node.text()
            if node.tag == "table":
                head = [cell.text() for cell in node.all("thead")[0].all("th")]
                if head[0] == first:
                    rows = [r for r in node.all("tbody")[0].all("tr") if "why" not in r.attributes.get("class", "")]
                    whys = [r.text() for r in node.all("tbody")[0].all("tr", "why")]
                    shown.append((title, [_cells(r, head) for r in rows], whys))
    return shown


def _flat(node: Node) -> Iterator[Node]:
    for each in node.inside:
        if isinstance(each, Node):
            yield each
            yield from _flat(each)


def _small(cell: Node | None) -> list[str]:
    return [small.text() for small in cell.all("small")] if cell is not None else []


def _measured(found: Statements, of: str, cells: Mapping[str, Node], unit: str, where: str) -> None:
    """Rate, prediction and ratios of one row."""
    found.number("rate", of, cells[unit].own() if unit in cells else None, where)
    for line in _small(cells.get(unit)):
        if bounds := re.match(rf"({_NUMBER})–({_NUMBER})$", line):
            found.number("rate low", of, bounds[1], where)
            found.number("rate high", of, bounds[2], where)
        if guess := re.match(rf"predicted ({_NUMBER})", line):
            found.number("prediction", of, guess[1], where)
    columns = ("against naive", "against the rung before", "speed against the rung before")
    for what, column in zip(("gain", "before", "speed before"), columns):
        cell = cells.get(column)
        if cell is not None and (number := re.match(rf"({_NUMBER})×", cell.own())):
            found.number(what, of, number[1], where)
            for bounds in (re.match(rf"({_NUMBER})–({_NUMBER})$", line) for line in _small(cell)):
                if bounds:
                    found.number(f"{what} low", of, bounds[1], where)
                    found.number(f"{what} high", of, bounds[2], where)


def _rungs(found: Statements, article: Node, ladder: Mapping[str, Any]) -> None:
    unit = "img/s" if ladder["dataset"].get("image_shape") else "samples/s"
    ((_, rows, _),) = _table(article, "Rung") or ((None, [], None),)
    for cells, row in zip(rows, ladder["rungs"]):
        name, where = row["name"], f"table of rungs, {row['name']}"
        _measured(found, name, cells, unit, where)
        verdict = re.sub(r"^[^\w]*", "", cells["Verdict"].own())
        found.word("verdict", name, verdict, where)
        kept = _small(cells["Verdict"])
        if kept:
            found.word("kept", name, "kept" if kept[0].startswith("kept") else "not kept", where)
        if "Accuracy" in cells and (number := re.match(rf"({_NUMBER}) %", cells["Accuracy"].own())):
            found.number("accuracy", name, number[1], where, 0.01)
            for line in _small(cells["Accuracy"]):
                if took := re.match(rf"in ({_DURATION})", line):
                    found.seconds("seconds of a training", name, took[1], where)
        elif "Accuracy" in cells and row["val_accuracy"]:
            found.wrong.append(f"{where}: no accuracy, and the JSON has {row['val_accuracy']}")
        if row["elapsed_seconds"]:
            found.exact("seconds of a training", name, row["elapsed_seconds"][-1], "JSON")
        if "best" in [b.text() for b in cells["Rung"].all("span", "best")]:
            found.word("name", "best", name, where)
        for note in row["notes"]:
            _note(found, row, note, ladder)


def _note(found: Statements, row: Mapping[str, Any], note: str, ladder: Mapping[str, Any]) -> None:
    name, where = row["name"], f"note of {row['name']}"
    shorter = rf"each training is ({_NUMBER}) epochs long instead of ({_NUMBER}), to fit .*? of (.*) min"
    if said := re.search(shorter, note):
        found.number("epochs", "naive", said[1], where)
        found.number("epochs asked", "naive", said[2], where)
        found.exact("epochs asked", "naive", ladder["base_recipe"]["epochs"], "JSON")
        found.number("budget", "the climb", said[3], where, 60.0)
        found.exact("budget", "the climb", ladder["budget"]["seconds"], "JSON")
    proof = ladder.get("proof") or {}
    less = rf"({_NUMBER})× less time (?:\(95 %: ({_NUMBER})–({_NUMBER})\) )?to"
    if row["kept"] and (said := re.match(less, note)) and not _lengthened(row):
        found.ratio("before", name, said.groups(), where)
    if said := re.search(rf"to ({_NUMBER}) % accuracy", note):
        found.number("target", name, said[1], where, 0.01)
        found.exact("target", name, (row["seconds_to_accuracy"] or {}).get("target"), "JSON")
    if (said := re.search(rf", and ({_NUMBER}) epochs at ({_NUMBER}) %", note)) and proof:
        found.number("epochs", "best", said[1], where)


def _lengthened(row: Mapping[str, Any]) -> bool:
    """Whether the proof made the rung's training longer, which its note says."""
    return any("in the proof" in note for note in row["notes"])


def _figures(found: Statements, article: Node) -> None:
    for svg in article.all("svg"):
        text = svg.attributes.get("aria-label") or next(iter(svg.all("title")), Node("title", {})).text()
        kind, _, rest = text.partition(". ")
        for part in rest.rstrip(".").split("; ") if kind else ():
            name, _, said = part.partition(": ") if kind.startswith(("Throughput", "Phases")) else (part, "", part)
            where = f"figure {kind!r}"
            if kind.startswith("Throughput"):
                number = re.match(rf"({_NUMBER}) ", said)
                found.number("rate", name, number and number[1], where)
                if guess := re.search(rf"predicted ({_NUMBER})", said):
                    found.number("prediction", name, guess[1], where)
                if (kept := re.search(r"(not kept|kept)$", said)) and name != "naive":
                    found.word("kept", name, kept[1], where)
            elif kind.startswith("Gain over"):
                if ratio := re.match(rf"(\S+) {_TIMES}", said):
                    found.ratio("before", ratio[1], ratio.groups()[1:], where)
            elif kind.startswith("Phases"):
                for phase, share in re.findall(rf"(\w+) ({_NUMBER}) %", said):
                    found.number(f"share of {phase}", name, share, where)
            elif reached := re.match(rf"(\S+) reached ({_NUMBER}) % after ({_DURATION})", said):
                found.number("accuracy", reached[1], reached[2], where, 0.01)
                found.seconds("seconds of a training", reached[1], reached[3], where)


def _variants(found: Statements, article: Node, ladder: Mapping[str, Any]) -> None:
    unit = "img/s" if ladder["dataset"].get("image_shape") else "samples/s"
    for title, rows, _ in _table(article, "Variant"):
        row = next((r for r in ladder["rungs"] if r["name"] == title), None)
        for cells, variant in zip(rows, row["variants"] if row else ()):
            label = cells["Variant"].own()
            said = re.findall(rf"({_NUMBER}) epochs?\b", label)
            for each in said if "epochs" in variant["changes"] else ():
                found.number("epochs", f"{title}, {label}", each, "the label")
            if "epochs" in variant["changes"]:
                found.exact("epochs", f"{title}, {label}", variant["changes"]["epochs"], "JSON")
            if variant["chosen"]:
                _measured(found, title, cells, unit, f"variants of {title}")
                accuracy = cells.get("Accuracy")
                number = re.match(rf"({_NUMBER}) %", accuracy.own()) if accuracy else None
                if number and row and not _lengthened(row):
                    found.number("accuracy", title, number[1], f"variants of {title}", 0.01)


def _sentences(found: Statements, article: Node, ladder: Mapping[str, Any]) -> None:
    header = article.all("header")[0]
    lines = [header.all("h1")[0].text(), *(item.text() for item in header.all("li"))]
    names = {text: name for name, text in RUNG_TEXTS.items()}
    for line in lines:
        where = f"headline {line[:60]!r}"
        small = line[:1].lower() + line[1:]
        if said := re.match(rf"({_DURATION}) instead of ({_DURATION}) to ({_NUMBER}) % accuracy: {_TIMES}", line):
            found.seconds("seconds to the target", "best", said[1], where)
            found.seconds("seconds to the target", "naive", said[2], where)
            found.number("target", "the proof", said[3], where, 0.01)
            found.number("proof", "best", said[4], where)
            if "one training each" in line.replace("of each", "each") and said[5]:
                found.wrong.append(f"{where}: an interval over one training")
            tiles = " ".join(box.text() for box in header.all("div", "tiles"))
            if not re.search(rf"accuracy to reach {said[3]} % in the proof: 2 points below", tiles):
                found.wrong.append(f"{where}: {said[3]} % is explained nowhere")
        if said := re.search(rf"({_NUMBER})× faster than naive(?: \(95 %: ({_NUMBER})–({_NUMBER})\))?", line):
            found.ratio("gain", "best", said.groups(), where)
        if said := re.search(rf"accuracy is ({_NUMBER}) points below naive's \(({_NUMBER}) %\)", line):
            found.number("accuracy", "best", said[2], where, 0.01)
        if said := re.search(rf"(?:held you back|limits it): (.*?) \(({_NUMBER}) % of the naive step\)", small):
            phase = next((phase for phase, text in PHASES.items() if text == said[1]), said[1])
            found.number(f"share of {phase}", "naive", said[2], where)
        if said := re.search(rf"waiting for data takes ({_NUMBER}) % of the step", small):
            found.number("share of data", "naive", said[1], where)
        if said := re.search(rf"copying batches to the device takes ({_NUMBER}) % of the step", small):
            found.number("share of copy", "naive", said[1], where)
        if said := re.search(rf"the net itself takes ({_NUMBER}) % of the step", small):
            found.number("share of the net", "naive", said[1], where)
            phases = next(row["phases_pct"] for row in ladder["rungs"] if row["name"] == "naive")
            found.exact("share of the net", "naive", sum(phases.get(name, 0.0) for name in _DEVICE), "JSON")
        if said := re.match(r"(.*) did not help on this", small):
            for text in re.split(r", | and (?!allocator)", said[1]):
                found.word("verdict", names.get(text, text), "no gain", where)
        if said := re.match(r"not measurable here now: (.*)", small):
            for text in said[1].split(", "):
                found.word("verdict", names.get(text, text), "not measurable", where)
        if said := re.match(r"(.*?) hurt(?::|$)", small):
            found.word("verdict", names.get(said[1], said[1]), "hurt", where)
        if said := re.match(r"(.*?) (?:was taken back|failed)(?::|$)", small):
            row = next((r for r in ladder["rungs"] if names.get(said[1], said[1]) == r["name"]), None)
            if row is not None and row["kept"]:
                found.wrong.append(f"{where}: but the rung is kept")


def _advice(found: Statements, article: Node, ladder: Mapping[str, Any]) -> None:
    boxes = article.all("section", "todo")
    if not boxes:
        return
    texts = [item.text() for item in boxes[0].all("ul")[0].all("li")] if boxes[0].all("ul") else []
    kept = [row for row in ladder["rungs"] if row["kept"] and row["name"] != "naive"]
    answers = [a for a in ladder["revisited"] if a["adopted"]]
    out = {a["rung"] for a in answers if a["kind"] == "left out"}
    ratios = [(row["name"], deciding(row)) for row in kept if row["name"] not in out]
    ratios += [(f"{a['rung']}, asked again", a["ratio"]) for a in answers if a["kind"] == "asked again"]
    if ratios and len(texts) != len(ratios):
        found.wrong.append(f"advice: {len(texts)} sentences for {len(ratios)} changes")
    for text, (name, ratio) in zip(texts if ratios else (), ratios):
        said = re.search(rf": ({_NUMBER})× ", text)
        if said and ratio:
            found.number("before", name, said[1], f"advice {text!r}")
            found.exact("before", name, ratio["median"], "JSON")


def _files(found: Statements, article: Node, ladder: Mapping[str, Any]) -> None:
    """The comments of best.yaml, and the fields of the best recipe."""
    for box in article.all("pre"):
        text = "".join(each for each in box.inside if isinstance(each, str))
        for name, said in re.findall(rf"# ([\w-]+): ({_NUMBER})x (?:the speed|less time)[^,\n]*here$", text, re.M):
            found.number("before", name, said, "best.yaml")
        for said in re.findall(rf"# The climb trained ({_NUMBER}) epoch", text):
            found.number("epochs", "naive", said, "best.yaml")
        if "best.py" in text or not text.startswith("dataset"):
            continue
        for said in re.findall(rf"^epochs: ({_NUMBER})$", text, re.M):
            found.number("epochs", "best", said, "the whole recipe")
    for _, rows, _ in _table(article, "Field"):
        for cells in rows:
            if cells["Field"].own() == "epochs":
                found.number("epochs", "best", cells["best"].own(), "the fields that differ")
                found.number("epochs", "naive", cells["naive"].own(), "the fields that differ")


def _columns(found: Statements, article: Node) -> None:
    for first in ("Rung", "Variant"):
        for title, rows, _ in _table(article, first):
            for name in rows[0] if rows else ():
                if all(r[name].text() in ("", "—") for r in rows if name in r):
                    found.wrong.append(f"table {title or first!r}: column {name!r} is empty")


def _agree(found: Statements, ladder: Mapping[str, Any]) -> None:
    """What follows from other statements: a verdict from its interval, the best recipe from what was kept."""
    best = (ladder["best"] or {}).get("name")
    answers = [a for a in ladder["revisited"] if a["adopted"]]
    rows = {row["name"]: row for row in ladder["rungs"]}
    for name, row in rows.items():
        in_best = row["kept"] and not any(a["rung"] == name and a["kind"] == "left out" for a in answers)
        in_best = in_best or any(a["rung"] == name and a["kind"] == "asked again" for a in answers)
        if row["status"] == "ran" and name != "naive":
            found.word("kept", name, "kept" if in_best else "not kept", "JSON, of the best recipe")
        verdict = "not measurable" if row["measurable"] is False else row["verdict"]
        if row["status"] == "ran" and verdict != "n/a":
            found.word("verdict", name, verdict, "JSON")
        ratio = deciding(row)
        bounds = (ratio or {}).get("ci95")
        if row["verdict"] == "helped" and bounds and bounds[0] <= 1:
            found.wrong.append(f"{name}: helped, with an interval from {bounds[0]:.3g}")
        changes, recipe = row["changes"], (ladder["best"] or {}).get("recipe") or {}
        later = [r for r in list(rows.values())[list(rows).index(name) + 1 :] if r["kept"]]
        for key, value in changes.items() if row["kept"] and in_best else ():
            other = any(key in r["changes"] for r in later) or any(key in a["changes"] for a in answers)
            if recipe.get(key) != value and not other:
                found.wrong.append(f"{name} is kept with {key}={value}, but the best recipe has {recipe.get(key)}")
    if best in rows:
        for what in ("rate", "gain", "accuracy", "epochs"):
            found.numbers[what, "best"] += found.numbers.get((what, best), [])
    elif best and rows:
        under = next((r for r in reversed(list(rows.values())) if r["kept"]), None)
        if under is not None:
            found.numbers["accuracy", "best"] += found.numbers.get(("accuracy", under["name"]), [])
