"""The pages of docs/catalogue/, made from the registries: a heading for each entry, so that search finds it by name.

``python -m tools.catalogue`` writes them, ``--check`` compares.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gluontune as gt
from gluontune.engines import ENGINES
from gluontune.methods.cards import METHODS
from gluontune.search.rungs import RUNGS


class Entry(NamedTuple):
    """What the catalogue has of one name: a sentence, facts by their titles, and a line that uses it."""

    name: str
    summary: str
    facts: Mapping[str, str]
    line: str


def linked(source: str) -> str:
    """A source, its arXiv numbers and addresses as links.

    >>> linked("You et al., arXiv:1904.00962")
    'You et al., [arXiv:1904.00962](https://arxiv.org/abs/1904.00962)'
    """
    source = re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", source)
    return re.sub(r"^https://\S+$", r"<\g<0>>", source)


def parameters(values: Mapping[str, Any]) -> str:
    """Parameters with their defaults, as code."""
    return ", ".join(f"`{name}={value!r}`" for name, value in values.items()) or "none"


def optimizers() -> Iterator[Entry]:
    """Those of ``gt.optim.setup``."""
    for card in gt.optim.OPTIMIZERS:
        rate = f"`learning_rate={card.learning_rate:g}`, `wd={card.wd:g}`"
        arrays = "array" if card.states == 1 else "arrays"
        masters = "; float16 weights need `multi_precision=True`" if card.needs_masters else ""
        facts = {
            "rule": f"`{card.rule}`",
            "source": linked(card.source),
            "start from": f"{rate} for a batch of {card.base_batch_size}; larger batches: the {card.lr_scaling} rule",
            "parameters": parameters(card.defaults),
            "memory": f"{card.states:g} float32 {arrays} for each parameter{masters}",
            "not when": card.when_not,
            "instead of MXNet's": card.instead_of,
        }
        yield Entry(card.name, card.when, facts, f'trainer = gt.optim.setup("{card.name}", net, batch_size=64)')


def schedules() -> Iterator[Entry]:
    """Functions of ``num_update``."""
    for name in gt.optim.schedules.SCHEDULES.names():
        card = gt.optim.schedules.SCHEDULES[name]
        signature = re.sub(
            r"[:=>-]+ ?'([^']*)'", lambda found: found.group().replace("'", ""), str(inspect.signature(card.make))
        )
        facts = {
            "when": card.when,
            "call": f"`gt.optim.schedules.{name}{signature}`",
            "end": "its last rate is that of the last update" if card.has_end else "none: it goes on",
        }
        yield Entry(name, card.summary, facts, f"gluontune train --schedule {name}")


def methods() -> Iterator[Entry]:
    """Ways to train shorter."""
    for card in METHODS:
        recipe = card.kind == "recipe"
        facts = {
            "source": linked(card.source),
            "when": card.when,
            "not when": card.when_not,
            "cost": card.cost,
            "fields of the recipe" if recipe else "parameters": parameters(card.changes if recipe else card.defaults),
        }
        line = f"gluontune factors --methods {card.name} --target 0.8"
        yield Entry(card.name, card.summary, facts, line if recipe else f"gluontune train --method {card.name}=true")


def rewrites() -> Iterator[Entry]:
    """Changes of layers."""
    for rewrite in gt.compute.REWRITES:
        card = rewrite.card
        facts = {"cause": card.why_slow, "when": card.when_it_helps, "devices": ", ".join(rewrite.devices)}
        line = f'gt.compute.apply_rewrites(net, ["{rewrite.name}"], batch)'
        yield Entry(rewrite.name, card.replaces, facts, line)


def loaders() -> Iterator[Entry]:
    """Ways from files to batches."""
    for info in gt.loading.LOADERS:
        facts = {"batches": f"`{info.yields}`", "needs": ", ".join(info.needs) or "nothing but numpy"}
        line = f'loader = gt.loading.build("{info.name}", split, batch_size=64, image_shape=(28, 28, 1))'
        yield Entry(info.name, info.summary, facts, line)


def augmentations() -> Iterator[Entry]:
    """What loaders do to an image."""
    for augment in gt.loading.AUGMENTS:
        drawn = {"random": "anew for each image and epoch" if augment.random else "no"}
        yield Entry(augment.name, augment.summary, drawn, f"gluontune train --augment {augment.name}")


def rungs() -> Iterator[Entry]:
    """Steps of the ladder."""
    for rung in RUNGS:
        judged = "time to the same accuracy" if rung.by_time else "throughput, at an accuracy that does not fall"
        facts = {"judged by": judged, "pace": rung.pace or "every"}
        yield Entry(rung.name, rung.sentence, facts, f"gluontune ladder --rungs {rung.name}")


def engines() -> Iterator[Entry]:
    """What computes a job."""
    for name in ENGINES.names():
        card = ENGINES[name]
        refused = {", ".join(f"`{field}`" for field in fields): way_out for fields, _, way_out in card.contradictions}
        yield Entry(name, f"{card.title} computes the job", refused, f"gluontune train --backend {name}")


def data_sets() -> Iterator[Entry]:
    """What a recipe's ``dataset`` may be."""
    for info in gt.datasets.DATASETS:
        yield Entry(
            info.name, info.summary, {"source": linked(info.source), "licence": info.licence},
            f"gluontune train --dataset {info.name}",
        )  # fmt: skip


#: Pages by file name: title, a sentence, and what makes the entries.
PAGES: dict[str, tuple[str, str, Callable[[], Iterator[Entry]]]] = {}
for _makes, _sentence in (
    (optimizers, "`gt.optim.setup` builds a Gluon trainer with each of them. The field of a recipe is `optimizer`."),
    (schedules, "Functions of `num_update` with MXNet's convention. The field of a recipe is `schedule`."),
    (methods, "Ways to an accuracy in fewer or cheaper epochs. The field of a recipe is `methods`."),
    (rewrites, "Changes of a net's layers that compute the same without a slow path."),
    (loaders, "Ways from files to batches. The field of a recipe is `loader`."),
    (augmentations, "What a loader does to each image. The field of a recipe is `augment`."),
    (rungs, "The steps of the ladder, in their order."),
    (
        engines,
        "What computes a job. The field of a recipe is `backend`. Each entry lists fields it refuses, and the way out.",
    ),
    (data_sets, "Names for the field `dataset`. Your own images are folders or [records](../how-to/records.md)."),
):
    PAGES[_makes.__name__.replace("_", "-")] = (_makes.__name__.replace("_", " ").capitalize(), _sentence, _makes)


def page(title: str, sentence: str, entries: Iterator[Entry]) -> str:
    """One page of the catalogue."""
    lines = [f"# {title}", sentence, ""]
    for entry in entries:
        summary = entry.summary.rstrip(".")
        lines += [f"## {entry.name}", f"{summary[:1].upper()}{summary[1:]}.", ""]
        lines += [f"- **{fact}**: {text}" for fact, text in entry.facts.items() if text]
        lines += ["", "```", entry.line, "```", ""]
    return "\n".join(lines)


def index() -> str:
    """The list of the pages with the names of their entries."""
    lines = [
        "# Catalogue",
        "The names that recipes, calls and flags take: what each does, its source, and a line that uses it.",
        "",
    ]
    for name, (title, _, entries) in PAGES.items():
        names = ", ".join(f"[{entry.name}]({name}.md#{anchor(entry.name)})" for entry in entries())
        lines.append(f"- **[{title}]({name}.md)**: {names}")
    return "\n".join([*lines, ""])


def anchor(name: str) -> str:
    """The anchor that the site gives a heading.

    >>> anchor("folder:PATH")
    'folderpath'
    """
    return re.sub(r"[^\w\s-]", "", name).strip().lower()


def pages() -> dict[str, str]:
    """All pages, by file name."""
    return {
        "index.md": index(),
        **{f"{name}.md": page(title, sentence, makes()) for name, (title, sentence, makes) in PAGES.items()},
    }


def main() -> int:
    """Write the pages, or with ``--check`` compare them. Returns 1 if one is out of date."""
    folder = Path(__file__).parents[1] / "docs" / "catalogue"
    stale = [
        name
        for name, text in pages().items()
        if not (folder / name).is_file() or (folder / name).read_text("utf-8") != text
    ]
    for name in stale:
        if "--check" in sys.argv[1:]:
            print(f"docs/catalogue/{name}: out of date; python -m tools.catalogue writes it")
        else:
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(pages()[name], encoding="utf-8")
    return int(bool(stale) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
