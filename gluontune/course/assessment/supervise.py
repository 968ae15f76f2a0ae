"""The supervisor: a process between the grader and the learner's script, that starts, watches and ends it.

All that the script starts, however it detaches itself, becomes a child of the supervisor when its own parent
ends (Linux's ``PR_SET_CHILD_SUBREAPER``). So nothing of it goes on after the clock has stopped.

The grader starts a guard, the guard the supervisor, and the supervisor the learner's script. If the supervisor is gone
(SIGKILL, the kernel's out-of-memory killer), all that it had started becomes the guard's (``PR_SET_CHILD_SUBREAPER``),
and the guard ends it. If the guard or the grader is gone, the kernel tells the next one below (``PR_SET_PDEATHSIG``),
which ends what it has started.
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
from gluontune.course.assessment.leftovers import Leftovers, send
from gluontune.course.assessment.limits import devices, seclude
from gluontune.monitor.sampler import Monitor

HANDED_IN = ("net-symbol.json", "net-0000.params", "report.json")

_PDEATHSIG, _SUBREAPER = 1, 36
_ALL_KINDS = 0x40000000  # __WALL: children whose end is told by another signal, too
_TICK_S = 0.05
_GRACE_S = 1.0  # for helpers of a loader to end by themselves after the script
_ORPHANED_RANK_S = 10.0  # a rank whose partner has ended waits for it in vain
_MOST_BYTES = 1 << 30
_MAX_POINTS = 400
_LIMITS = "gluontune.course.assessment.limits"


def run_script(spec: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Run a script under limits in processes of its own, and return what was seen.

    Args:
        spec: ``command`` (the interpreter and its arguments), ``tasks`` (for each rank its folders, ``taken`` for a
            copy of what it has handed in when the clock stops, and what ``GLUONTUNE_TASK`` says), ``engine``,
            ``seconds`` and ``memory_mib`` (the limits), ``read`` and ``folder``.
        env: its environment.

    Returns:
        ``{"seconds", "stopped_by", "ranks": [{"code", "cpu_s", "seconds", "forced", "tail"}], "left", "steadiness",
        "series", "peak_rss_mib", "peak_gpu_mib", "secluded"}``; ``secluded``: it had no network but loopback.

    Raises:
        GluontuneError: the supervisor itself could not work, or was killed.
    """
    process = subprocess.Popen(
        python("-m", "gluontune.course.assessment.supervise"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env), start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(json.dumps({**spec, "parent": os.getpid()}).encode())
    except BaseException:
        process.terminate()  # it ends what it has started
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        raise
    try:
        report: dict[str, Any] = json.loads(said)
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
        self.cluster: Any = None
        self.meeting: Any = None
        self.stopped_by: str | None = None
        self.forced: set[int] = set()  # ranks that were ended here
        self.left = Leftovers(lambda: {p.pid for p in (self.cluster.processes if self.cluster else [])})

    def work(self) -> dict[str, Any]:
        try:
            envs = self._partners()
            started = time.monotonic()
            for rank, task in enumerate(self.spec["tasks"]):
                self._start(rank, task, {**os.environ, **envs[rank]})
            with Monitor([p.pid for p in self.ranks], period_s=0.1) as watch:
                while len(self.ends) < len(self.ranks):
                    self._look(started, watch.latest() or {})
                    time.sleep(_TICK_S)
                seconds = max(end["seconds"] for end in self.ends.values())
            self._take_copies()
            self.left.end(0 if self.stopped_by else _GRACE_S)
            left = [] if self.stopped_by else sorted(self.left.ended.values())
        finally:
            self.left.end(0)
            for helper in (self.cluster, self.meeting):
                if helper is not None:
                    helper.close()
        return {
            "seconds": seconds, "stopped_by": self.stopped_by,
            "ranks": [{**self.ends[rank], "tail": self._tail(rank)} for rank in sorted(self.ends)], "left": left,
            "steadiness": watch.steadiness(), "series": watch.series(_MAX_POINTS), "peak_rss_mib": watch.peak_rss_mib,
            "peak_gpu_mib": watch.peak_gpu_mib,
        }  # fmt: skip

    def _partners(self) -> list[dict[str, str]]:
        """What the ranks need to find each other: the parameter server, or Horovod's meeting place."""
        count = len(self.spec["tasks"])
        if count == 1:
            return [{}]
        if self.spec["engine"] == "horovod":
            from gluontune.parallel.horovod import start_meeting

            self.meeting = start_meeting([count])
            return list(self.meeting.envs)
        from gluontune.parallel.kvstore import start_cluster

        # a server unpickles what a script sends it as its optimizer, which is code: it is under the script's limits
        home = tempfile.mkdtemp(dir=os.path.dirname(self.spec["tasks"][0]["home"]))
        env = {**os.environ, "HOME": home, "TMPDIR": home}
        self.cluster = start_cluster(count, env, under=self._limited(None, [], [home]))
        return [self.cluster.worker_env] * count

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
        """The command that puts the one behind it under the script's limits."""
        limits = {"parent": os.getpid(), "cpus": cpus, "read": read, "write": [*write, *devices()]}
        return python("-m", _LIMITS, json.dumps({**limits, "memory_mib": self.spec["memory_mib"]}))

    def _look(self, started: float, sample: dict[str, Any]) -> None:
        """Take note of ranks that have ended, and end those that passed a limit."""
        for rank, process in enumerate(self.ranks):
            if rank in self.ends:
                continue
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                self.ends[rank] = {
                    "code": process.returncode,
                    "cpu_s": usage.ru_utime + usage.ru_stime,
                    "seconds": time.monotonic() - started,
                    "forced": rank in self.forced,
                }
        if self.stopped_by is not None or len(self.ends) == len(self.ranks):
            return
        passed = time.monotonic() - started
        partners = [end["seconds"] for end in self.ends.values()]
        if passed > self.spec["seconds"]:
            self.stopped_by = "time"
        elif (sample.get("rss_mib") or 0) > self.spec["memory_mib"]:
            self.stopped_by = "memory"
        elif partners and any(e["code"] for e in self.ends.values()) and passed - min(partners) > _ORPHANED_RANK_S:
            self.stopped_by = "partner"
        if self.stopped_by is not None:
            for rank, process in enumerate(self.ranks):
                if process.returncode is None:
                    self.forced.add(rank)
                    process.kill()

    def _take_copies(self) -> None:
        """What is handed in is what lies there when the clock stops: the rest stands still while it is copied."""
        rest = [process.pid for process in self.left.alive()]
        send(rest, signal.SIGSTOP)
        for task in self.spec["tasks"]:
            copy_handed_in(task["out"], task["taken"])
        if not self.stopped_by:
            send(rest, signal.SIGCONT)

    def _tail(self, rank: int, size: int = 3000) -> str:
        handle = self.logs[rank].fileno()
        return os.pread(handle, size, max(0, os.fstat(handle).st_size - size)).decode("utf-8", "replace")


def copy_handed_in(out: str, taken: str) -> None:
    """Copy the files that count: regular ones of a sound size. What else bears their names is left out."""
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


def end_descendants(seconds: float = 20.0) -> bool:
    """Kill all descendants of this process, and theirs, until no child is left; False if ``seconds`` do not do."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG | _ALL_KINDS)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(0.001)
    return False


def become_guard(grader: int) -> None:
    """Fork: returns in the child, which is to be the supervisor; the parent watches over it and never returns.

    ``grader``: process id of the process that started this one; its end ends all.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until there is somebody to tell
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

    def tell(*_: object) -> None:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, tell)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc.prctl(_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    if os.getppid() != grader:
        tell()
    _, status = os.waitpid(child, 0)
    end_descendants()
    code = os.waitstatus_to_exitcode(status)
    sys.stderr.flush()
    os._exit(code if code >= 0 else 128 - code)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Read the specification from stdin, work, write the report to stdout."""
    spec = json.loads(sys.stdin.buffer.read())
    become_guard(spec["parent"])
    say = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _interrupted)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        secluded = seclude()
        report = {**_Supervisor(spec).work(), "secluded": secluded}
    except (GluontuneError, OSError) as error:
        report = {"error": f"the script could not be run: {error}"}
    except KeyboardInterrupt:
        sys.exit(130)
    json.dump(report, say)
    say.close()


if __name__ == "__main__":
    main()
