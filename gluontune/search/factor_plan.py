"""Factors, the sets of them to run, and their interactions. Pure functions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gluontune.core.errors import UsageError
from gluontune.core.reading import parse_yaml
from gluontune.core.stats import combine
from gluontune.recipe import Recipe
from gluontune.search.rung import Site
from gluontune.search.rungs import RUNGS

DEFAULT_FACTORS = ("environment", "records", "hybridized", "mixed-precision", "large-batch")
# The variant that stands for a rung: one that changes no field of another factor; the first by default.
_VARIANT = {"hybridized": -1, "multi-worker": -1}

FactorSet = tuple[str, ...]


@dataclass(frozen=True)
class Factor:
    name: str
    sentence: str
    changes: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        changes = {k: list(v) if isinstance(v, tuple) else v for k, v in self.changes.items()}
        return {"name": self.name, "sentence": self.sentence, "changes": changes}


# Factors that are no rungs: they change what is learned, not the speed.
EXTRA_FACTORS = {
    "stochastic-depth": Factor(
        "stochastic-depth", "residual branches dropped at random (up to 0.2)", {"stochastic_depth": 0.2}
    )
}


def parse_factor(text: str) -> Factor:
    """A factor of the user's from ``NAME:FIELD=VALUE,FIELD=VALUE``; values are read as YAML.

    >>> parse_factor("big:batch_size_per_device=256, rewrites=[a, b]").changes
    {'batch_size_per_device': 256, 'rewrites': ['a', 'b']}
    """
    name, colon, rest = text.partition(":")
    form = "write NAME:FIELD=VALUE,FIELD=VALUE, such as --factor big:batch_size_per_device=256"
    if not colon or not re.fullmatch(r"[\w.-]+", name.strip()):
        raise UsageError(f"--factor {text!r}: {form}")
    changes: dict[str, Any] = {}
    for part in re.split(r",\s*(?=\w+\s*=)", rest.strip()):
        field, equals, value = part.partition("=")
        if not equals or not field.strip():
            raise UsageError(f"--factor {text!r}: {form}")
        try:
            changes[field.strip()] = parse_yaml(value)
        except ValueError as error:
            raise UsageError(f"--factor {text!r}: {field.strip()} has a value that is not YAML") from error
    if unknown := sorted(set(changes) - set(Recipe().to_dict())):
        raise UsageError(f"--factor {text!r}: recipes have no field {unknown[0]!r}")
    return Factor(name.strip(), ", ".join(f"{k}={v}" for k, v in changes.items()), changes)


def resolve_factors(
    recipe: Recipe, site: Site, names: Sequence[str] | None, users: Sequence[Factor]
) -> tuple[list[Factor], dict[str, str]]:
    """The factors to analyse, and the reasons against the others; ``names`` None takes :data:`DEFAULT_FACTORS`."""
    found, skipped = [], {}
    for name in DEFAULT_FACTORS if names is None else names:
        if name in EXTRA_FACTORS:
            found.append(EXTRA_FACTORS[name])
            continue
        rung = RUNGS[name]
        reason = rung.requires(recipe, site)
        variants = [] if reason else rung.variants(recipe, site)
        if not variants or rung.name == "naive":
            skipped[rung.name] = reason or "nothing to change"
            continue
        variant = variants[_VARIANT.get(rung.name, 0)]
        found.append(Factor(rung.name, f"{rung.sentence} ({variant.label})", dict(variant.changes)))
    found += users
    check_factors(recipe, found)
    return found, skipped


def check_factors(recipe: Recipe, factors: Sequence[Factor]) -> None:
    for first, second in itertools.combinations(factors, 2):
        if first.name == second.name:
            raise UsageError(f"factor {first.name!r} is there twice: give each a name of its own")
        one, two = first.to_dict()["changes"], second.to_dict()["changes"]
        for field in one.keys() & two.keys():
            if one[field] != two[field]:
                both = f"both set {field} ({first.changes[field]!r} and {second.changes[field]!r})"
                text = f"factors {first.name!r} and {second.name!r} {both}"
                raise UsageError(f"{text}: they cannot be switched on together; leave one out")
    for factor in factors:
        if recipe_of(recipe, [factor]) == recipe:
            raise UsageError(f"factor {factor.name!r} changes nothing: the base recipe has {factor.sentence} already")


def recipe_of(recipe: Recipe, factors: Sequence[Factor]) -> Recipe:
    return recipe.override(**{field: value for factor in factors for field, value in factor.changes.items()})


def plan(names: Sequence[str], pairs: bool = True) -> dict[FactorSet, list[str]]:
    """The sets of factors to run, each with its roles, in the order of running.

    A set of several roles runs once.

    >>> for chosen, parts in plan(["a", "b", "c"]).items():
    ...     print(set_name(chosen), parts)
    base ['base']
    a ['alone', 'cumulative']
    b ['alone']
    c ['alone']
    a + b ['cumulative', 'without c', 'pair']
    a + b + c ['cumulative', 'all']
    b + c ['without a', 'pair']
    a + c ['without b', 'pair']
    """
    names = list(names)
    found: dict[FactorSet, list[str]] = {(): ["base"]}

    def add(chosen: Sequence[str], part: str) -> None:
        parts = found.setdefault(tuple(n for n in names if n in chosen), [])
        if part not in parts:
            parts.append(part)

    for name in names:
        add([name], "alone")
    for count in range(1, len(names) + 1):
        add(names[:count], "cumulative")
    add(names, "all")
    for name in names:
        if len(names) > 1:
            add([n for n in names if n != name], f"without {name}")
    for pair in itertools.combinations(names, 2) if pairs else ():
        add(pair, "pair")
    return found


def set_name(chosen: Sequence[str]) -> str:
    return " + ".join(chosen) or "base"


Ratio = Mapping[str, Any]  # {"median", "ci95"}


def quotient(mine: Ratio, theirs: Ratio) -> dict[str, Any]:
    bounds = theirs["ci95"]
    inverse = {"median": 1 / theirs["median"], "ci95": [1 / bounds[1], 1 / bounds[0]] if bounds else None}
    return combine([mine, inverse])


def interactions(ratios: Mapping[FactorSet, Ratio | None], names: Sequence[str]) -> list[dict[str, Any]]:
    """The gain of each pair of factors against the product of their gains alone, and of all factors likewise.

    ``ratios`` are the gains of each set over the base. In the rows ``ratio`` is measured ÷ promised, where promised is
    the product of the gains alone; ``as promised``: its interval holds 1.

    >>> sure = lambda m: {"median": m, "ci95": [m, m]}
    >>> found = interactions({("a",): sure(2.0), ("b",): sure(3.0), ("a", "b"): sure(4.0)}, ["a", "b"])
    >>> found[0]["verdict"], round(found[0]["ratio"]["median"], 3)
    ('less than promised', 0.667)
    """
    rows = []
    for group in [*itertools.combinations(names, 2), *([tuple(names)] if len(names) > 2 else [])]:
        alone, together = [ratios.get((name,)) for name in group], ratios.get(group)
        if all(alone) and together:
            promised = combine([ratio for ratio in alone if ratio])
            row = {"factors": list(group), "promised": promised, "measured": together}
            ratio = quotient(together, promised)
            verdict = _verdict(ratio, ("more than promised", "less than promised", "as promised"))
            rows.append({**row, "ratio": ratio, "verdict": verdict})
    return rows


def leave_one_out(ratios: Mapping[FactorSet, Ratio | None], names: Sequence[str]) -> list[dict[str, Any]]:
    """The gain of each factor on top of all the others: gain of all ÷ gain of all without it."""
    rows, whole = [], ratios.get(tuple(names))
    for name in names:
        rest = ratios.get(tuple(n for n in names if n != name))
        row: dict[str, Any] = {"factor": name, "ratio": None, "verdict": "not known"}
        if whole and rest:
            row["ratio"] = quotient(whole, rest)
            row["verdict"] = _verdict(row["ratio"], ("helps", "hurts", "no difference"))
        rows.append(row)
    return rows


def _verdict(ratio: Ratio, words: tuple[str, str, str]) -> str:
    if ratio["ci95"] is None:
        return "one run"
    return words[0] if ratio["ci95"][0] > 1 else words[1] if ratio["ci95"][1] < 1 else words[2]
