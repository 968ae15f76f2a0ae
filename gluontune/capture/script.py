"""A user's program: what ``gluontune run`` may change of it, by name, and how its process starts.

By ``os.execve``, as :func:`start` does, so that pid, signals, exit code and streams are its own, or ``subprocess``.
"""

from __future__ import annotations

import functools
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Optional

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.interpreter import SAFE, python

#: The name that ``--leave`` takes, and where the class is.
CHANGES = {"samples": "gluontune.capture.helpers.samples:Samples", "blocks": "gluontune.capture.helpers.blocks:Blocks"}

#: The settings of the process: ``--leave`` takes it, too.
ENVIRONMENT = "environment"

#: The state of changes that are kept where they measure faster, as under ``gluontune run``.
DECIDED = "decided"

#: The variable with the number of threads that a script may have; ``OMP_NUM_THREADS`` is how many it begins with.
ALL_THREADS = "GLUONTUNE_THREADS"

#: Where the class is that tries them.
THREADS = "gluontune.capture.helpers.base:Threads"

#: Variables that :func:`environment` may set.
SETTINGS = (
    "GOMP_SPINCOUNT", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS",
    "MXNET_OPTIMIZER_AGGREGATION_SIZE",
)  # fmt: skip

#: Numerically the same: updates of many parameters in one call. MXNet's own default is 4.
_CAREFUL = {"MXNET_OPTIMIZER_AGGREGATION_SIZE": "45"}
_LOOKS, _LOOK_S = 7, 0.01


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
        """Raises UsageError if there is no file of that name, or a folder, or ``GLUONTUNE_DEVICE`` names no device."""
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
    """How many threads of other programs run now; a thread that waits for its turn holds up its whole team."""
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


def start(
    words: Sequence[str], out: Optional[str] = None, leave: Sequence[str] = (), dtype: str = "float32",
    backend: str = "mxnet", device: str = "auto",
) -> NoReturn:  # fmt: skip
    """Put the program in this process's place, with the tuned environment and our changes.

    Args:
        words: ``SCRIPT ARGS…`` or ``-m MODULE ARGS…``. out: path of the document of what was gained, or None.
        leave: names of changes that are left out. dtype: ``bfloat16`` has MXNet's operators compute in it.
        backend: ``torch`` has PyTorch compute, once a step is proven. device: where it does; a name that PyTorch knows.

    Raises:
        UsageError: there is no such script. GluontuneError: Python cannot be started.
    """
    began = time.time()
    program = Program.of(words)
    program.check()
    child = environment("as-installed" if ENVIRONMENT in leave else "tuned")
    settings = sorted(name for name in SETTINGS if name in child and name not in os.environ)
    options = {"began": began, "settings": settings, "out": out and os.path.abspath(out), "leave": list(leave)}
    options.update(dtype=dtype, backend=backend, device=device)
    started = command(program, "gluontune.capture.running", json.dumps(options))
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        os.execve(started[0], started, child)
    except OSError as error:
        raise GluontuneError(f"{started[0]}: cannot be started: {error}") from error


# Retired scripts say mx.gpu(), and MXNet's CUDA wheels have no code for newer cards. Of its own accord gluontune puts
# nothing in a GPU's place: scripts ask in a loop how many there are, until MXNet raises.
DEVICE = "GLUONTUNE_DEVICE"
HINT = f"MXNet computes on no GPU here; {DEVICE}=cpu before the command has the CPU compute what a script puts on GPUs"
_NO_GPU = re.compile(
    r"GPU is not enabled|not implemented for GPU|no CUDA-capable device|no kernel image|invalid device ordinal"
)


def wants_cpu(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user wants the CPU in place of GPUs.

    Raises:
        UsageError: ``GLUONTUNE_DEVICE`` is neither empty nor ``cpu``.

    >>> wants_cpu({}), wants_cpu({"GLUONTUNE_DEVICE": "cpu"})
    (False, True)
    """
    wanted = environ.get(DEVICE, "")
    if wanted not in ("", "cpu"):
        raise UsageError(f"{DEVICE}={wanted}: cpu is the only value; without it a script's devices are its own")
    return bool(wanted)


def put_on_cpu(mx: Any, first: Optional[int] = None) -> None:
    """Have each context ``gpu(i)`` be ``cpu(i)`` from now on, if the user wants it.

    Args:
        mx: the mxnet module. first: have the first so many be the CPU, whatever the user wants; others are MXNet's own.
    """
    kinds = mx.Context.devstr2type
    if wants_cpu():
        mx.Context.devstr2type = {**kinds, "gpu": kinds["cpu"]}
    elif first is not None:
        begin = mx.Context.__init__

        @functools.wraps(begin)
        def context(self: Any, device_type: Any, device_id: int = 0) -> None:
            begin(self, "cpu" if device_type == "gpu" and device_id < first else device_type, device_id)

        mx.Context.__init__ = context


def with_hint(text: str) -> str:
    """A script's error, with what helps if it failed for want of a GPU.

    >>> with_hint("train.py: GPU is not enabled")[:51], with_hint("train.py: shapes differ")
    ('train.py: GPU is not enabled\\nMXNet computes on no G', 'train.py: shapes differ')
    """
    return f"{text}\n{HINT}" if _NO_GPU.search(text) else text
