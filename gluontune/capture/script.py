"""A user's program run as ``python script.py ARGS`` would run it, with functions that are called once it imports mxnet.

Two halves. Who starts a program makes a :class:`Program` and hands :func:`command` and :func:`environment` to
``os.execve``, so that pid, signals, exit code and standard streams are the program's own, or to ``subprocess``. The
module that the command names runs in the new process and calls :func:`run`.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, ModuleType, TracebackType
from typing import Any

from gluontune.capture.devices import HINT, put_on_cpu, wants_cpu, with_hint
from gluontune.capture.names import ALL_THREADS
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.interpreter import SAFE, python

#: Variables that :func:`environment` may set.
SETTINGS = (
    "GOMP_SPINCOUNT", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS",
    "MXNET_OPTIMIZER_AGGREGATION_SIZE",
)  # fmt: skip

#: Numerically the same: updates of many parameters in one call. MXNet's own default is 4.
_CAREFUL = {"MXNET_OPTIMIZER_AGGREGATION_SIZE": "45"}
_LOOKS, _LOOK_S = 7, 0.01

#: Called with the module ``mxnet`` when the script imports it, before the script goes on.
WhenImported = Callable[[ModuleType], None]


@dataclass(frozen=True)
class Program:
    """What Python would be called with.

    Args:
        target: the path of the script; with ``is_module`` the module's name, as of ``python -m``.
        args: the script's own words, untouched.
        is_module: whether ``target`` is a module.

    >>> Program.of(["train.py", "--epochs", "2"]), Program.of(["-m", "package.train"]).is_module
    (Program(target='train.py', args=('--epochs', '2'), is_module=False), True)
    """

    target: str
    args: tuple[str, ...] = field(default=())
    is_module: bool = False

    @classmethod
    def of(cls, words: Sequence[str]) -> Program:
        """The program of a command line, as Python reads it: ``SCRIPT ARGS…`` or ``-m MODULE ARGS…``.

        Raises:
            UsageError: there is no script, or no module after ``-m``.
        """
        is_module = list(words[:1]) == ["-m"]
        rest = tuple(words[1:] if is_module else words)
        if not rest:
            raise UsageError("name the script to run, such as train.py, or -m and a module")
        return cls(rest[0], rest[1:], is_module)

    @property
    def words(self) -> list[str]:
        """The command line of which :meth:`of` makes this program."""
        return [*(["-m"] if self.is_module else []), self.target, *self.args]

    @property
    def folder(self) -> str:
        """Where the program's own files are; of a module, the working directory."""
        return os.getcwd() if self.is_module else os.path.dirname(os.path.abspath(self.target))

    def check(self) -> None:
        """Refuse a script that is not there, and a device that is none.

        Raises:
            UsageError: no file of that name, or a folder; ``GLUONTUNE_DEVICE`` names no device.
        """
        wants_cpu()
        if self.is_module:
            return
        if not os.path.exists(self.target):
            raise UsageError(f"{self.target}: no such file; give the path of a Python script, or -m and a module")
        if os.path.isdir(self.target):
            raise UsageError(f"{self.target}: a folder; give the path of a Python script in it, or -m and a module")


def command(program: Program, module: str, *options: str) -> list[str]:
    """The command that starts ``module`` of ours with ``options`` and the program's words, in a Python like this one.

    Not with ``-P``, which the script's own Pythons would inherit; our file takes its folder off the path itself.
    """
    started = python("-m", module, *options, *program.words)
    return [word for word in started[: len(SAFE) + 1] if word not in SAFE] + started[len(SAFE) + 1 :]


def environment(runtime: str = "tuned", environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the script's process. What the user has set himself stays.

    Args:
        runtime: ``tuned`` or ``as-installed``. environ: the caller's; default ``os.environ``.

    >>> environment(environ={"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"]
    '7'
    """
    from gluontune.runtime.launch import child_env, pristine

    users = pristine(os.environ if environ is None else environ)
    share = _cores_of_a_rank(users)
    child = child_env(runtime, environ=environ, cores=share)
    if runtime == "tuned":
        child.update(_CAREFUL)
        child[ALL_THREADS] = users.get("OMP_NUM_THREADS", child["OMP_NUM_THREADS"])
        if "OMP_NUM_THREADS" not in users:  # MXNet's own half at first: many small operators lose by a second thread
            cores, others = int(child["OMP_NUM_THREADS"]), running_others() if share is None else 0
            child["OMP_NUM_THREADS"] = str(max(1, cores // 2))
            child[ALL_THREADS] = str(max(1, cores // 2, cores - others))
    return {name: users.get(name, value) for name, value in child.items()}


def _cores_of_a_rank(environ: Mapping[str, str]) -> int | None:
    """The cores of a script that srun, mpirun or another started several times on this host; None for all."""
    from gluontune.parallel.environment import found
    from gluontune.runtime.system import System

    try:
        place = found(environ)
    except UsageError:  # the script may know better
        return None
    if place is None:
        return None
    machine = System()
    bound = len(machine.affinity()) < (os.cpu_count() or 1)
    cores = max(1, machine.compute_cores() // (1 if bound else place.local_world or 1))
    return min(cores, place.cpus or cores)


def running_others(root: str = "/") -> int:
    """How many threads of other programs run now; a thread that waits for its turn holds up all the others of its team.

    Args:
        root: the folder that holds ``proc``.
    """
    seen = []
    for _ in range(_LOOKS):
        try:
            with open(os.path.join(root, "proc/stat"), encoding="ascii") as stream:
                running = next(int(line.split()[1]) for line in stream if line.startswith("procs_running"))
        except (OSError, ValueError, StopIteration):
            return 0
        seen.append(running - 1)  # without this process
        time.sleep(_LOOK_S)
    return max(0, round(statistics.median(seen)))


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


_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


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
