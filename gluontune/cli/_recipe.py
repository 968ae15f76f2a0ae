"""A recipe from the command line: a YAML file, overridden by one flag for each field of Recipe.

The flags and their help are made from the dataclass and its docstring, so a new field needs nothing here.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import emit
from gluontune.cli._help import FOLDED, show_recipe_flags
from gluontune.core.errors import UsageError
from gluontune.core.reading import parse_yaml
from gluontune.recipe import Recipe, own_recipes, rules
from gluontune.recipe.registry import resolve

#: The groups in which `--help-recipe` shows the fields, each from the field that begins it.
PANELS = {
    field: f"{FOLDED}{title}"
    for field, title in {
        "dataset": "job", "batch_size_per_device": "data", "stochastic_depth": "net", "optimizer": "optimizer",
        "devices": "devices", "methods": "methods", "epochs": "length", "runtime": "process",
    }.items()
}  # fmt: skip

_RECIPE_FILE = "YAML file of recipe fields, or one of gluontune's own"
_NOT_FLAGS = ("env", "rewrites")  # by --set or in the YAML file
#: Fields that take NAME=VALUE, repeatable, with an example.
_MAPPINGS = {**dict(zip(rules.PARAMETERS.values(), ("beta1=0.8", "factor=0.5"))), "methods": "mixup=true"}


def field_help() -> dict[str, str]:
    """The sentence on each field in Recipe's docstring.

    >>> field_help()["seed"]
    'of parameters, shuffling and augmentation.'
    >>> field_help()["wd"]
    "weight decay, which does not touch biases, gammas and betas; left out: the card's."
    """
    text = (inspect.getdoc(Recipe) or "").split("Args:")[1].split("Raises:")[0]
    found: dict[str, str] = {}
    for names, sentence in re.findall(r"^ {4}([\w, ]+): (.+(?:\n {8}.+)*)", text, flags=re.M):
        for name in names.split(", "):
            found[name] = " ".join(sentence.replace("``", "").replace("None: ", "left out: ").split())
    return found


def parse_settings(settings: list[str], option: str = "--set", example: str = "epochs=3") -> dict[str, Any]:
    """``["epochs=3", "dtype=bfloat16"]`` as a mapping; values are read as YAML.

    >>> parse_settings(["epochs=3", "train_samples=null", "dtype=bfloat16"])
    {'epochs': 3, 'train_samples': None, 'dtype': 'bfloat16'}
    """
    values = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {setting!r}: write FIELD=VALUE, such as {option} {example}")
        try:
            values[name.strip()] = parse_yaml(text)
        except ValueError as error:
            raise UsageError(f"{option} {setting!r}: the value is not valid YAML") from error
    return values


#: What ``--list`` knows, by the flag.
LISTED = ("dataset", "net", "loader", "augment", "optimizer", "schedule", "method", "recipe", "rungs")


def choices_of(flag: str) -> list[str]:
    """The names that a flag takes here.

    >>> choices_of("loader")
    ['gluon', 'threaded', 'resident']
    >>> choices_of("--dtype")
    ['float32', 'float16', 'bfloat16']
    """
    field = {"method": "methods"}.get(name := flag.lstrip("-").replace("-", "_"), name)
    if field in rules.CHOICES:
        return list(rules.CHOICES[field])
    if field == "net":
        from gluontune import train

        return train.net_names()
    if field == "recipe":
        return own_recipes()
    others = {"dataset": "gluontune.datasets.catalog:DATASETS", "rungs": "gluontune.search.rungs:RUNGS"}
    if (where := {**rules.REGISTRIES, **others}.get(field)) is None:
        raise UsageError(f"--list {flag}: give a flag that takes a name: {', '.join(LISTED)}")
    return resolve(where).names()


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """Flatten a command's frozen records of options into single options."""
    hints = typing.get_type_hints(command)
    records: dict[str, Any] = {
        name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind) and kind is not Recipe
    }
    parameters: list[inspect.Parameter] = []
    for p in _typed(command):
        if p.name not in records:
            parameters.append(p)
            continue
        kinds = typing.get_type_hints(records[p.name])
        for field in dataclasses.fields(records[p.name]):
            parameters.append(p.replace(name=field.name, annotation=kinds[field.name], default=field.default))

    def wrapper(**values: Any) -> Any:
        for name, record in records.items():
            values[name] = record(**{field.name: values.pop(field.name) for field in dataclasses.fields(record)})
        return command(**values)

    return _signed(wrapper, command, parameters) if records else command


def _typed(command: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a command, by keyword, with their types resolved."""
    hints = typing.get_type_hints(command)
    listed = inspect.signature(command).parameters.values()
    return [p.replace(annotation=hints.get(p.name, p.annotation), kind=p.KEYWORD_ONLY) for p in listed]


def _signed(wrapper: Any, command: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """``wrapper`` with the name of ``command`` and these parameters."""
    wrapper.__signature__ = inspect.Signature(parameters)
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
    return wrapper


def takes_recipe(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes a ``recipe`` the options ``--recipe``, ``--set`` and a flag for each of its fields.

    ``given`` contains the fields that the user chose, so that the command can choose the others. Other commands stay.
    """
    command = grouped(command)
    if "recipe" not in inspect.signature(command).parameters:
        return command
    hints, helps = typing.get_type_hints(Recipe), field_help()
    parameters = [
        _parameter("recipe_file", Optional[Path], ["--recipe"], f"{_RECIPE_FILE}: {', '.join(own_recipes())}."),
        _parameter("settings", Optional[list[str]], ["--set"], "FIELD=VALUE for any field, as YAML; repeatable."),
        _parameter("list_names", Optional[str], ["--list"], f"Show the names that a flag takes: {', '.join(LISTED)}."),
    ]
    flag = typer.Option(
        False, "--help-recipe", is_eager=True, callback=show_recipe_flags, rich_help_panel="Recipe",
        help="Show this help with a flag for each field of the recipe, such as --batch-size-per-device.",
    )  # fmt: skip
    parameters.append(inspect.Parameter("help_recipe", inspect.Parameter.KEYWORD_ONLY, default=flag, annotation=bool))
    fields = [f for f in dataclasses.fields(Recipe) if f.name not in _NOT_FLAGS]
    panel = PANELS[fields[0].name]
    for f in fields:
        panel = PANELS.get(f.name, panel)
        kinds = [a for a in typing.get_args(hints[f.name]) if a is not type(None)]  # int of int | None
        kind = list[str] if f.name in _MAPPINGS else kinds[0] if kinds else hints[f.name]
        usual = "NAME=VALUE; repeatable" if f.name in _MAPPINGS else f"default: {f.default}"
        text = f"{helps.get(f.name, '')} [{usual}]" if usual != "default: None" else helps.get(f.name, "")
        parameters.append(_parameter(f.name, Optional[kind], [_flag(f.name)], text, panel))

    def wrapper(**values: Any) -> Any:
        listed, _ = values.pop("list_names"), values.pop("help_recipe")
        if listed is not None:
            names = choices_of(listed)
            emit(names) if values.get("as_json") else print("\n".join(names))
            return 0
        path, settings = values.pop("recipe_file"), values.pop("settings") or []
        chosen = {f.name: values.pop(f.name) for f in fields}
        given = {name: value for name, value in chosen.items() if value is not None and value != []}
        for name in set(given) & set(_MAPPINGS):
            given[name] = parse_settings(given[name], _flag(name), _MAPPINGS[name])
        given.update(parse_settings(settings))
        base = Recipe.from_yaml(path) if path is not None else Recipe()
        recipe = base.override(**given)
        if path is not None:
            given = {**recipe.differences(Recipe()), **given}
        return command(recipe=recipe, given=given, **values)

    options = [p for p in _typed(command) if p.name not in ("recipe", "given")]
    return _signed(wrapper, command, [*options, *parameters])


def _flag(name: str) -> str:
    return "--method" if name == "methods" else f"--{name.replace('_', '-')}"


def _parameter(name: str, kind: Any, flags: list[str], text: str, panel: str = "Recipe") -> inspect.Parameter:
    metavar = "NAME=VALUE" if typing.get_origin(typing.get_args(kind)[0]) is list else None
    option = typer.Option(None, *flags, help=text, show_default=False, rich_help_panel=panel, metavar=metavar)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)
