"""The supervisor: a process between the grader and the learner's script that starts, watches and ends it.

The grader starts a guard, the guard the supervisor, and the supervisor the script. Orphans of the script, detached or
not, become children of the supervisor (``PR_SET_CHILD_SUBREAPER``): none goes on after the clock has stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import psutil

from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import python
from gluontune.course.assessment.leftovers import Leftovers
from gluontune.course.assessment.limits import devices, seclude
from gluontune.monitor.sampler import Monitor

HANDED_IN = ("net-symbol.json", "net-0000.params", "report.json")

_PDEATHSIG, _SUBREAPER = 1, 36
_TICK_S = 0.05
_GRACE_S = 1.0  # for a loader's helpers to end after the script
_ORPHANED_RANK_S = 10.0  # after a failed rank's end, until its partner is ended
_MOST_BYTES = 1 << 30
_SPARE = 0.03  # of the machine's memory: what is left when a script is ended, whatever took the rest
_MAX_POINTS = 400
_LIMITS = "gluontune.course.assessment.limits"


def run_script(spec: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Run a script under limits in its own processes, and return a report.

    Args:
        spec: ``command``, ``tasks`` (for each rank its folders, ``taken`` for a copy of its net when the clock stops,
            and ``GLUONTUNE_TASK``), ``engine``, the limits ``seconds`` and ``memory_mib``, and ``read``.
        env: its environment.

    Returns:
        ``{"seconds", "stopped_by", "ranks": [{"code", "cpu_s", "seconds", "forced", "tail"}], "left", "steadiness",
        "series", "peak_rss_mib", "peak_gpu_mib", "secluded"}``; ``secluded``: no network but loopback.

    Raises:
        GluontuneError: the supervisor failed, or was killed.
    """
    process = subprocess.Popen(
        python("-m", "gluontune.course.assessment.supervise"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env), start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(json.dumps({**spec, "parent": os.getpid()}).encode())
    except BaseException:
        process.terminate()  # it ends its processes
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        raise
    try:
        report: dict[str, Any] = json.loads(output)
    except ValueError:
        raise GluontuneError(
            f"the supervisor of the script ended with code {process.returncode} before its report; was it killed?"
        ) from None
    if "error" in report:
        raise GluontuneError(report["error"])
    return report


class _Supervisor:
    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.logs: list[Any] = []
        self.ends: dict[int, dict[str, Any]] = {}
        self.helpers = contextlib.ExitStack()  # the parameter server, which may run a rank's code, or the meeting place
        self.stopped_by: str | None = None
        self.forced: set[int] = set()  # ranks that were ended here
        self.shared = psutil.virtual_memory().shared  # of the machine: files in memory belong to no process
        self.left = Leftovers()

    def work(self) -> dict[str, Any]:
        try:
            envs = self._partners()
            started = time.monotonic()
            for rank, task in enumerate(self.spec["tasks"]):
                self._start(rank, task, {**os.environ, **envs[rank]})
            with Monitor(os.getpid(), period_s=0.1) as watch:  # orphans and the parameter server, too
                while len(self.ends) < len(self.ranks):
                    self._look(started, watch.latest() or {})
                    time.sleep(_TICK_S)
                seconds = max(end["seconds"] for end in self.ends.values())
            self.helpers.close()
            self._take_copies()
            self.left.end(0 if self.stopped_by else _GRACE_S)
            left = [] if self.stopped_by else sorted(self.left.ended.values())
        finally:
            self.helpers.close()
            self.left.end(0)
        return {
            "seconds": seconds, "stopped_by": self.stopped_by,
            "ranks": [{**self.ends[rank], "tail": self._tail(rank)} for rank in sorted(self.ends)], "left": left,
            "steadiness": watch.steadiness(), "series": watch.series(_MAX_POINTS), "peak_rss_mib": watch.peak_rss_mib,
            "peak_gpu_mib": watch.peak_gpu_mib,
        }  # fmt: skip

    def _partners(self) -> list[dict[str, str]]:
        """Environments that connect the ranks: by the parameter server, or Horovod's rendezvous."""
        count = len(self.spec["tasks"])
        if count == 1:
            return [{}]
        if self.spec["engine"] == "horovod":
            from gluontune.parallel.horovod import meeting

            return self.helpers.enter_context(meeting([count]))
        from gluontune.parallel.kvstore import start_cluster

        # a server unpickles the script's optimizer, which may be any code: it runs under the script's limits
        home = tempfile.mkdtemp()
        env = {**os.environ, "HOME": home, "TMPDIR": home}
        cluster = self.helpers.enter_context(start_cluster(count, env, under=self._limited(None, [], [home])))
        return [cluster.worker_env] * count

    def _start(self, rank: int, task: dict[str, Any], env: dict[str, str]) -> None:
        from gluontune.runtime import cpus_for_rank

        count, home = len(self.spec["tasks"]), task["home"]
        cpus = cpus_for_rank(rank, count) if count > 1 else None
        limited = self._limited(cpus, [*self.spec["read"], task["data"]], [home, task["out"]])
        env = {**env, **task["env"], "HOME": home, "TMPDIR": home, "PYTHONUNBUFFERED": "1"}
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the supervisor
        self.logs.append(log)
        self.ranks.append(
            subprocess.Popen(
                [*limited, *self.spec["command"]],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=home, env=env,
                start_new_session=True,
            )
        )  # fmt: skip

    def _limited(self, cpus: Any, read: list[str], write: list[str]) -> list[str]:
        """The begin of a command that runs the rest under the script's limits."""
        limits = {"parent": os.getpid(), "cpus": cpus, "read": read, "write": [*write, *devices()]}
        return python("-m", _LIMITS, json.dumps({**limits, "memory_mib": self.spec["memory_mib"]}))

    def _look(self, started: float, sample: dict[str, Any]) -> None:
        """Record the ranks that have ended, and end all if a limit is exceeded."""
        for rank, process in enumerate(self.ranks):
            if rank in self.ends:
                continue
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                self.ends[rank] = {
                    "code": process.returncode, "cpu_s": usage.ru_utime + usage.ru_stime,
                    "seconds": time.monotonic() - started, "forced": rank in self.forced,
                }  # fmt: skip
        if self.stopped_by is not None or len(self.ends) == len(self.ranks):
            return
        passed = time.monotonic() - started
        memory = psutil.virtual_memory()  # buffers of sockets and pipes are nowhere but in what is left
        shared = memory.shared - self.shared >> 20
        partners = [end["seconds"] for end in self.ends.values()]
        if passed > self.spec["seconds"]:
            self.stopped_by = "time"
        elif max(sample.get("rss_mib") or 0, shared) > self.spec["memory_mib"] or (
            memory.available < _SPARE * memory.total
        ):
            self.stopped_by = "memory"
        elif partners and any(e["code"] for e in self.ends.values()) and passed - min(partners) > _ORPHANED_RANK_S:
            self.stopped_by = "partner"
        if self.stopped_by is not None:
            for rank, process in enumerate(self.ranks):
                if process.returncode is None:
                    self.forced.add(rank)
                    process.kill()

    def _take_copies(self) -> None:
        """Copy the nets as they are when the clock stops; remaining processes are paused meanwhile."""
        self.left.stop()
        for task in self.spec["tasks"]:
            copy_handed_in(task["out"], task["taken"])
        if not self.stopped_by:
            self.left.go_on()

    def _tail(self, rank: int, size: int = 3000) -> str:
        handle = self.logs[rank].fileno()
        return os.pread(handle, size, max(0, os.fstat(handle).st_size - size)).decode("utf-8", "replace")


def copy_handed_in(out: str, taken: str) -> None:
    """Copy the files of a net; only regular files of a reasonable size."""
    os.makedirs(taken, exist_ok=True)
    for name in HANDED_IN:
        with contextlib.suppress(OSError):
            source = os.open(os.path.join(out, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(source, "rb") as reading:
                status = os.fstat(source)
                if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
                    continue
                with open(os.path.join(taken, name), "wb") as writing:
                    shutil.copyfileobj(reading, writing, 1 << 20)


def become_guard(grader: int) -> None:
    """Fork: returns in the child, the future supervisor; the parent becomes its guard and never returns.

    If the supervisor dies (SIGKILL, the kernel's out-of-memory killer), its processes become children of the guard,
    which ends them. If the guard or the grader (its process id) dies, the kernel signals the next one below
    (``PR_SET_PDEATHSIG``), which ends its processes.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until the handler exists
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        libc.prctl(_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != guard:
            os._exit(1)
        return
    for number in (0, 1):  # the pipes are the supervisor's
        with contextlib.suppress(OSError):
            os.close(number)

    def forward(*_: object) -> None:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc.prctl(_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    if os.getppid() != grader:
        forward()
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(GluontuneError):
        Leftovers().end(0)
    code = os.waitstatus_to_exitcode(status)
    sys.stderr.flush()
    os._exit(code if code >= 0 else 128 - code)


def main() -> None:
    """Read the specification from stdin, work, write the report to stdout."""
    spec = json.loads(sys.stdin.buffer.read())
    become_guard(spec["parent"])
    say = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        tempfile.tempdir = os.path.dirname(spec["tasks"][0]["home"])
        report = {"secluded": seclude(tempfile.tempdir), **_Supervisor(spec).work()}
    except (GluontuneError, OSError) as error:
        report = {"error": f"the script could not be run: {error}"}
    except KeyboardInterrupt:
        sys.exit(130)
    json.dump(report, say)
    say.close()


if __name__ == "__main__":
    main()
