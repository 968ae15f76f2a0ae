"""Help of the command line: groups of commands, examples, options in groups."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

#: The commands by what one wants to do, in the order of `--help`. One that is not named here comes last.
GROUPS: dict[str, tuple[str, ...]] = {
    "Start": ("doctor", "run", "init", "ladder"),
    "Train": ("capture", "train", "tune", "esgd", "export", "migrate"),
    "Measure": ("factors", "tta", "monitor", "bench", "report"),
    "Data": ("data", "pack", "verify", "size"),
    "Several machines": ("launch", "scale"),
    "Learn": ("course", "assess"),
}

FIRST = """Three things to do first:

  gluontune doctor             what this machine has, and what to mend
  gluontune ladder --quick     make a small training job fast, on this machine, in minutes
  gluontune ladder train.py    what makes your own Gluon script faster here; it is not changed

gluontune --help shows all commands.
"""

#: Two calls of each command, as its `--help` shows them; a test parses each.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "doctor": ("doctor", "doctor train.py -- --epochs 10"),
    "run": ("run train.py --epochs 10", "run --out gained.json -m package.train"),
    "init": ("init job.py", "init work/job.py"),
    "ladder": ("ladder train.py --budget 5m -- --epochs 10", "ladder --job job.py --out runs/mine --resume"),
    "capture": ("capture train.py --epochs 1", "capture --steps 5 --json train.py"),
    "train": ("train --dataset sample --epochs 1", "train --recipe best.yaml --checkpoint ckpt --resume --json"),
    "tune": ("tune --dataset sample --budget 10 --out tuned", "tune --dataset cifar10 --out tuned --resume"),
    "esgd": ("esgd --net mlp --loader resident --population 4 --generations 3", "esgd --out esgd --resume"),
    "export onnx": ("export onnx ckpt net.onnx", "export onnx --net mobilenet1.0 --random net.onnx"),
    "migrate": ("migrate train.py torch/ -- --epochs 2", "migrate job.py torch/"),
    "export zoo": ("export zoo", "export zoo mobilenet1.0 cifar_resnet20_v1"),
    "factors": ("factors --target 0.80 --out factors", "factors --methods all --target 0.80 --out factors --resume"),
    "tta": ("tta --target 0.80 --repeats 5 --out tta", "tta --recipe deck --out tta"),
    "monitor": ("monitor", "monitor -- python train.py"),
    "bench loading": ("bench loading train.rec", "bench loading train.rec --json"),
    "bench packing": ("bench packing photos/", "bench packing photos/ --size 256 --json"),
    "bench training": ("bench training", "bench training --json"),
    "bench inference": ("bench inference ckpt", "bench inference --net mobilenet1.0 --json"),
    "bench bridge": ("bench bridge --quick", "bench bridge --out bridge.json --resume"),
    "bench recipes": ("bench recipes", "bench recipes --count 50 --seed 1"),
    "bench gpu": ("bench gpu --out gpu", "bench gpu --pretend"),
    "bench scripts": ("bench scripts --list scripts.yaml", "bench scripts --list scripts.yaml --out seen --resume"),
    "report": ("report runs/ --out report.html", "report base.json new.json --compare --threshold 5"),
    "data list": ("data list", "data list --json"),
    "data fetch": ("data fetch cifar10", "data fetch fashion-mnist"),
    "data add": ("data add cifar10 cifar-10-python.tar.gz", "data add fashion-mnist downloads/"),
    "data make": ("data make synthetic:train=2000,test=200,size=64", "data make sample --source downloads/"),
    "pack": ("pack photos/ train.rec", "pack photos/ train.rec --resize 256"),
    "verify": ("verify train.rec", "verify train.rec --repair whole.rec"),
    "size": ("size train.rec", "size train.rec --json"),
    "launch": (
        "launch -n 2 --engine shared-memory -- train --dataset sample",
        "launch --engine horovod --hosts a:4,b:4 -- train --recipe best.yaml",
    ),
    "scale": ("scale --net cifar_resnet20_v1", "scale --net cifar_resnet20_v1 --bandwidth 1.25,12.5"),
    "course list": ("course list", "course list --json"),
    "course open": ("course open", "course open 03"),
    "course status": ("course status", "course status --json"),
    "course run": ("course run", "course run 03 --set dataset=cifar10"),
    "course export": ("course export", "course export 03 04 --site lessons"),
    "assess": ("assess --new mine.py", "assess mine.py"),
}

_ORDER = [name for names in GROUPS.values() for name in names]


def option_record(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    """The spelling and help of an option or argument, without the parser's metavars; None if it is hidden."""
    if (record := parameter.get_help_record(ctx)) is None:
        return None
    flags, meaning = record
    if parameter.param_type_name == "argument":
        flags, meaning = _argument(parameter), meaning.replace("[required]", "").rstrip()
    for pattern, text in _PLAIN:
        meaning = re.sub(pattern, text, meaning)
    return re.sub(r"<(?:list\[)?(\w+)\]?(?: range)?>", r"<\1>", flags), meaning


#: The parser's names of types, and ours.
_PLAIN = ((r"([\d.]+)<=x<=([\d.]+)", r"\1 to \2"), (r"\bx>=([\d.]+)", r"at least \1"), (r"\bx>([\d.]+)", r"above \1"))


def _argument(parameter: Any) -> str:
    """``SRC``, ``[SRC]`` for an optional argument, or its metavar."""
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.metavar or parameter.required else f"[{name}]"


#: Groups of options whose titles begin so are shown by `--help-recipe` alone.
FOLDED = "Recipe: "
_UNFOLDED = "gluontune.unfolded"


def show_recipe_flags(ctx: typer.Context, given: bool) -> None:
    """The callback of ``--help-recipe``."""
    if given:
        ctx.meta[_UNFOLDED] = True
        print(ctx.get_help())
        raise typer.Exit


class HelpedCommand(TyperCommand):
    """A command with options in the groups of ``rich_help_panel``, and examples."""

    examples: tuple[str, ...] = ()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return [self.options_metavar or "", *map(_argument, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := option_record(parameter, ctx)) is not None:
                argument = parameter.param_type_name == "argument"
                panel = getattr(parameter, "rich_help_panel", None)
                groups.setdefault("Arguments" if argument else panel or "Options", []).append(record)
        if _UNFOLDED not in ctx.meta:
            groups = {title: records for title, records in groups.items() if not title.startswith(FOLDED)}
        order = ("Arguments", "Options")
        for title in sorted(groups, key=lambda t: order.index(t) if t in order else 2):
            with formatter.section(title):
                formatter.write_dl(groups[title])
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"  gluontune {example}\n")


class CommandGroup(TyperGroup):
    """The commands in their groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = {name: place for place, name in enumerate(_ORDER)}
        return sorted(self.commands, key=lambda name: (order.get(name, len(order)), name))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        options = [r for r in (p.get_help_record(ctx) for p in self.get_params(ctx)) if r is not None]
        with formatter.section("Options"):
            formatter.write_dl(options)
        rest = [name for name in self.list_commands(ctx) if name not in _ORDER]
        for title, names in {**GROUPS, "Others": tuple(rest)}.items():
            if shown := [name for name in names if name in self.commands]:
                with formatter.section(title):
                    formatter.write_dl([(name, self.commands[name].get_short_help_str(200)) for name in shown])


class Subgroup(TyperGroup):
    """The commands in the order of the code, with whole sentences."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            shown = self.commands.items()
            formatter.write_dl([(name, each.get_short_help_str(200)) for name, each in shown if not each.hidden])


def dress(app: typer.Typer, path: str = "") -> None:
    """Set the class and examples of every command of ``app`` and its groups."""
    for info in app.registered_commands:
        for parameter in inspect.signature(info.callback).parameters.values() if info.callback else ():
            option = parameter.default
            if isinstance(option, OptionInfo) and option.default is False and not option.param_decls:
                option.param_decls = (f"--{parameter.name.replace('_', '-')}",)  # a switch, without --no-…
        name = f"{path}{info.name or getattr(info.callback, '__name__', '').replace('_', '-')}"
        if info.cls is None or info.cls is TyperCommand:
            info.cls = type("Helped", (HelpedCommand,), {"examples": EXAMPLES.get(name, ())})
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.typer_instance.info.cls = Subgroup
            dress(group.typer_instance, f"{path}{group.name or group.typer_instance.info.name} ")
