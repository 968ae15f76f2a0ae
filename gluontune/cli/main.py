"""``gluontune``: loads the commands, and turns errors into one or two lines and an exit code."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

import gluontune
from gluontune.cli._common import debugging
from gluontune.cli._help import FIRST, CommandGroup, dress
from gluontune.cli._recipe import takes_recipe
from gluontune.core.errors import GluontuneError, printable
from gluontune.parallel import environment

# Typer carries a copy of click from 0.2x on: take the base of its errors from wherever it lives.
ClickException: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

#: How each of our applications behaves.
OPTIONS: dict[str, Any] = {
    "cls": CommandGroup, "pretty_exceptions_enable": False, "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}  # fmt: skip


#: Commands of which the words after the first are another program's.
OF_OTHERS = ("run", "capture", "monitor")


def build_app() -> typer.Typer:
    """The application with every command file of this package."""
    text = "Take an MXNet Gluon training job up the ladder: measure each rung here, keep what helps."
    app = typer.Typer(name="gluontune", help=text, invoke_without_command=True, **OPTIONS)

    def version(value: bool) -> None:
        if value:
            print(f"gluontune {gluontune.__version__}")
            raise typer.Exit

    @app.callback()
    def top(
        context: typer.Context,
        version: bool = typer.Option(False, "--version", callback=version, is_eager=True, help="Show it."),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error (any position)."),
    ) -> None:
        if context.invoked_subcommand is None:
            print(FIRST, end="")

    add_commands(app, "gluontune.cli")
    return app


def add_commands(app: typer.Typer, package: str) -> None:
    """Add what each module in ``package`` has: ``COMMANDS`` and ``GROUPS`` of commands; or by its ``register(app)``."""
    found = [m.name for m in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    for name in sorted(name for name in found if not name.startswith("_") and name != "main"):
        module = importlib.import_module(f"{package}.{name}")
        if hasattr(module, "register"):
            module.register(app)
            continue
        _add(app, module.COMMANDS, OF_OTHERS)
        for title, (text, commands) in getattr(module, "GROUPS", {}).items():
            group = typer.Typer(help=text, no_args_is_help=True)
            _add(group, commands)
            app.add_typer(group, name=title)
    dress(app)


def _add(app: typer.Typer, commands: Iterable[Callable[..., Any]], of_others: Sequence[str] = ()) -> None:
    for command in commands:
        name = command.__name__.partition("_")[0]
        settings = {"allow_interspersed_args": False} if name in of_others else None
        app.command(name, context_settings=settings)(takes_recipe(command))


def main(
    argv: Sequence[str] | None = None, build: Callable[[], typer.Typer] = build_app, name: str = "gluontune"
) -> int:
    """Run the command line and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for command in ("run", "capture"):
        if command in arguments[:end] and set(arguments[: arguments.index(command)]) <= {"--debug"}:
            end = arguments.index(command)  # what follows is the script's
    debug = "--debug" in arguments[:end]
    arguments = [a for a in arguments[:end] if a != "--debug"] + arguments[end:]
    debugging.set(debug)
    try:
        code = build()(args=arguments, prog_name=name, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except ClickException as error:
        _explain(error, arguments)
        error.message = printable(error.message)
        error.show(file=sys.stderr)
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    except GluontuneError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:
        if debug:
            raise
        told = f"{type(error).__name__}: {printable(str(error))}"
        print(f"error: {told} (a fault of gluontune's; --debug shows where)", file=sys.stderr)
        return 1


def _explain(error: Any, arguments: Sequence[str]) -> None:
    """Add the value to typer's errors that omit it (from 0.29 on), and what takes scripts where one was given."""
    faults: Any = getattr(error.__cause__, "errors", list)()
    if faults and "input" in faults[0]:
        hint = {"float_parsing": "give a number", "int_parsing": "give a whole number"}.get(faults[0]["type"])
        hint = hint or error.message.replace("Input should be", "give a value")
        error.message = f"{faults[0]['input']!r}: {hint}"
    script = next((word for word in arguments if word.endswith(".py") and word in error.message), None)
    if script is not None and error.message.startswith("Got unexpected extra argument"):
        known = shlex.quote(script)
        error.message += (
            f". A script of your own is run by `gluontune run {known}`, and climbs with `gluontune ladder {known}`; "
            f"`--job {known}` takes a file that defines net(), data() or loss()"
        )


def _is_rank() -> bool:
    try:
        return environment.found(os.environ) is not None
    except GluontuneError:  # the command will say it
        return True


def entry() -> None:
    """The console script. A cluster's SIGTERM is handled like Ctrl-C: measurements are kept.

    A rank of a launcher's ends by it until it trains: the exception of Ctrl-C can get lost in an import, and its
    scheduler would wait.
    """
    if not _is_rank():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.stdout is not None and sys.stdout.errors == "strict":  # a file's name may be no UTF-8, or a terminal's none
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main())
