"""The user's file: run like a script, with errors that name its line."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.runtime import mxnet

NAMES = ("net", "data", "loss", "metric", "step", "begin")


#: What follows an error of the user's code whose text has the pattern.
_HINTS = {
    r"^TypeError.*required positional argument": (
        "; data() gives (input, …, label), and what goes from batch to batch comes from begin() and step()"
    ),
    r"_rnn\d+: Shape inconsistent, Provided = \[\d+,0,": (
        "; MXNet compiles no recurrent layer of mx.np that is called without states: give it begin_state(batch), "
        "or use hybridize='imperative'"
    ),
    "could not construct a sub-memory": (
        "; oneDNN cannot join these arrays: MXNET_MKLDNN_ENABLED=0 does without it, see docs/mxnet-faults.md"
    ),
}


class _TrainsAtImport(BaseException):
    """Leaves the user's file at its first update, past any ``except Exception``."""


class _AsWritten(SourceFileLoader):
    """Runs the source itself: byte code beside it would count as current within a second of the same size."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def load_module(path: str | Path) -> ModuleType:
    """Run a ``job.py`` and return it as a module.

    It can import from its folder, and from the current one, after Python's modules and installed packages, so that a
    file called ``queue.py`` there hides neither. Its ``sys.argv`` has no arguments: a script that parses them gets its
    defaults.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise GluontuneError(f"{path}: no such job file; give the path of a Python file that defines net()")
    if file.suffix != ".py":
        raise GluontuneError(f"{path}: not a Python file; a job ends in .py")
    loader = _AsWritten("gluontune_user_job", str(file))
    spec = importlib.util.spec_from_file_location("gluontune_user_job", file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gluontune_user_job"] = module
    with contextlib.suppress(FileNotFoundError):  # the current folder may be gone
        for place in (str(file.parent), os.getcwd()):
            if place not in sys.path:
                sys.path.append(place)
    try:
        with as_script(file), _no_training():
            loader.exec_module(module)
    except _TrainsAtImport as error:
        raise GluontuneError(
            f"{place_of(file, error)}the file trains while it is imported; put what trains under "
            "`if __name__ == '__main__':`, so that its net() can be had without"
        ) from error
    except SystemExit as error:
        raise GluontuneError(
            f"{place_of(file, error)}the file ends itself (exit code {error.code}) while it is imported, without "
            "arguments; put what ends it, or needs arguments, under `if __name__ == '__main__':`"
        ) from error
    except Exception as error:
        raise GluontuneError(f"{place_of(file, error)}the job raised {in_words(error)}") from error
    if not any(callable(getattr(module, name, None)) for name in NAMES):
        raise GluontuneError(
            f"{path}: the job defines none of net(), data(), loss(); define at least one, or "
            f"run it as it is: gluontune run {path}"
        )
    return module


def trains(path: str | Path) -> bool:
    """Whether a file is a script that trains; a job file defines ``net()``, ``data()`` or ``loss()`` for others."""
    try:
        tree = ast.parse(Path(path).read_text("utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise GluontuneError(f"{path}: {error}") from error
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    started = any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body)
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    imported = {
        name.asname or name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names
    }
    return started or bool(used & {"backward", "Trainer"}) or not (defined | imported) & set(NAMES)


@contextlib.contextmanager
def as_script(file: str | Path) -> Iterator[None]:
    """``sys.argv`` of a script that was started without arguments."""
    before = sys.argv
    sys.argv = [str(file)]
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _no_training() -> Iterator[None]:
    """A context that the first update of a ``gluon.Trainer`` ends."""
    trainer = mxnet().gluon.Trainer
    before = trainer.step

    def step(*_: Any, **__: Any) -> None:
        raise _TrainsAtImport

    trainer.step = step
    try:
        yield
    finally:
        trainer.step = before


@contextlib.contextmanager
def blaming(
    path: str | Path | None, name: str, function: Any = None, seen: str = "", guess: str = ""
) -> Iterator[None]:
    """A context that adds the file's line to errors of the user's code, or of MXNet within it.

    Args:
        path: of the job file, or None.
        name: the called function, such as ``"net()"``. function: its definition, if no line of the file raised.
        seen: its arguments, for the message. guess: at the cause, where the error is not a known one.
    """
    try:
        yield
    except GluontuneError:
        raise
    except (Exception, SystemExit) as error:
        given = f" for {seen}" if seen else ""
        told = in_words(error)
        hint = next((hint for pattern, hint in _HINTS.items() if re.search(pattern, told)), "")
        failed = f"{place_of(path, error, function)}{name} failed{given}{'' if hint else guess}"
        raise GluontuneError(f"{failed}: {told}{hint}") from error


def place_of(path: str | Path | None, error: BaseException | None, function: Any = None) -> str:
    """The start of a message: ``file:line: `` of the file's innermost frame in a traceback, else of ``function``."""
    if path is None:
        return ""
    file = Path(path).resolve()
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", None)
    if isinstance(error, SyntaxError) and error.filename == str(file):
        line = error.lineno or line
    for frame, number in traceback.walk_tb(error.__traceback__ if error is not None else None):
        if Path(frame.f_code.co_filename).resolve() == file:
            line = number
    return f"{file}:{line}: " if line else f"{file}: "


def in_words(error: BaseException) -> str:
    """An error's kind and message on one line; of MXNet's, the informative line."""
    kind = type(error).__name__
    text = str(error).split("Stack trace:")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and kind == "MXNetError":
        lines = [line[12:] if line.startswith("MXNetError: ") else line for line in lines]
        told = [line for line in lines if "Check failed" in line or "Error in" in line or "requires" in line]
        lines = told[:2] or lines
    words = " ".join(lines[-3:])[:600]
    return f"{kind}: {words}" if words and kind != "MXNetError" else words or kind


def call(path: str | Path | None, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the job; an error names its line."""
    with as_script(path) if path is not None else contextlib.nullcontext():
        try:
            return function(*arguments)
        except GluontuneError:
            raise
        except (Exception, SystemExit) as error:
            raised = f"{name}() of the job raised {in_words(error)}"
            raise GluontuneError(f"{place_of(path, error, function)}{raised}") from error
