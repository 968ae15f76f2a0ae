"""The process of ``gluontune run``: the user's program with changes in place, and two lines about them at the end.

python -m gluontune.capture.running OPTIONS SCRIPT ARGS…
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType, TracebackType
from typing import Any

from gluontune.capture.changes import ChangesAccount, TorchAccount
from gluontune.capture.script import HINT, Program, put_on_cpu, with_hint
from gluontune.core.errors import GluontuneError

#: Called with the module ``mxnet`` when the script imports it, before the script goes on.
WhenImported = Callable[[ModuleType], None]
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def run(program: Program, when_imported: Sequence[WhenImported] = ()) -> None:
    """Run the program as this process's ``__main__``; it ends as the program ends: by return, exception or exit.

    ``sys.argv``, ``sys.path[0]``, ``__file__`` and ``__spec__`` are as under ``python``, so that ``multiprocessing``
    finds ``__main__`` again, and a traceback begins with the script's first frame.

    Args:
        program: the program. when_imported: called in turn with mxnet, when the script has imported it.
    """
    _watch_for_mxnet([put_on_cpu, *when_imported])
    main = ModuleType("__main__")
    vars(main).update(__builtins__=__builtins__, __annotations__={})
    try:
        code = _module(program, main) if program.is_module else _file(program, main)
        sys.modules["__main__"] = main
        if "__mp_main__" in sys.modules:  # multiprocessing was imported by us, and calls the main module so
            sys.modules["__mp_main__"] = main
        exec(code, vars(main))
    except BaseException as error:
        _without_our_frames(error)
        raise


def _file(program: Program, main: ModuleType) -> CodeType:
    path = os.path.abspath(program.target)
    sys.argv[:] = [program.target, *program.args]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__file__, main.__loader__, main.__spec__ = path, loader, None
    vars(main)["__cached__"] = None
    return loader.source_to_code(loader.get_data(path), path)


def _module(program: Program, main: ModuleType) -> CodeType:
    sys.argv[:] = ["-m", *program.args]  # what is imported on the way sees it so under Python, too
    sys.path.insert(0, os.getcwd())
    name = program.target
    spec = _found(name)
    if spec is not None and spec.submodule_search_locations is not None:  # a package runs its __main__
        name += ".__main__"
        spec = _found(name)
    code = spec.loader.get_code(name) if spec is not None and hasattr(spec.loader, "get_code") else None  # type: ignore
    if spec is None or code is None:
        raise SystemExit(f"{sys.executable}: No module named {name}")
    main.__spec__, main.__loader__, main.__file__, main.__package__ = spec, spec.loader, spec.origin, spec.parent
    vars(main)["__cached__"] = spec.cached
    sys.argv[0] = str(spec.origin)
    return code  # type: ignore[no-any-return]


def _found(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise SystemExit(f"{sys.executable}: Error while finding module specification for {name!r} ({error})") from None


def _without_our_frames(error: BaseException) -> None:
    """Whatever hook prints this error shows the script's frames alone. Python itself gives the exit code."""
    hook = sys.excepthook
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    traces = {}
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traces[id(each)] = _scripts_own(each.__traceback__)
            each.__traceback__ = traces[id(each)]
            waiting += [each.__cause__, each.__context__]

    def show(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        trace = traces.get(id(value), trace)  # what passed through here since has our frames again
        hook(kind, value.with_traceback(trace), trace)
        if with_hint(str(value)) != str(value):
            print(f"gluontune: {HINT}", file=sys.stderr)

    sys.excepthook = show


def _scripts_own(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_OURS) and not (name.startswith("<frozen") and not kept):
            kept.append(trace)
        trace = trace.tb_next
    own: TracebackType | None = None
    for each in reversed(kept):
        own = TracebackType(own, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return own


def _watch_for_mxnet(when_imported: Sequence[WhenImported]) -> None:
    """Let the script's ``import mxnet`` go through :func:`gluontune.runtime.mxnet`, and hear of calls of that, too."""
    from gluontune.runtime import importing
    from gluontune.runtime.import_hooks import Finder

    original, waiting = importing.mxnet, list(when_imported)

    def told(module: ModuleType) -> None:
        while waiting:
            waiting.pop(0)(module)

    @functools.wraps(original)
    def mxnet() -> ModuleType:
        module = original()
        told(module)
        return module

    def once(_: Any) -> Any:
        sys.meta_path.remove(finder)
        return _Loader(told)

    finder = Finder(once, ["mxnet"])
    sys.meta_path.insert(0, finder)
    importing.mxnet = mxnet


class _Loader:
    """Loads mxnet by :func:`gluontune.runtime.mxnet`, which imports it anew inside."""

    def __init__(self, when_imported: WhenImported):
        self._when_imported = when_imported
        self._spec: Any = None

    def create_module(self, _: Any) -> ModuleType:
        from gluontune.runtime.importing import mxnet

        try:
            module = getattr(mxnet, "__wrapped__", mxnet)()  # who waits for it is told when it is whole
        except GluontuneError as error:
            raise ImportError(str(error), name="mxnet") from error
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        self._when_imported(module)


def main() -> None:
    """``OPTIONS SCRIPT ARGS…``: options as one JSON document."""
    options, program = json.loads(sys.argv[1]), Program.of(sys.argv[2:])
    account = TorchAccount(options, program.folder) if options["backend"] == "torch" else ChangesAccount(options)
    run(program, [account.begin])


if __name__ == "__main__":
    main()
