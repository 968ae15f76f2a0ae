"""Training: ``train``, and ``launch`` for several processes, here or on several machines."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import emit, launched, say, show_traceback, stderr
from gluontune.cli._options import JSON_OPTION, TIME_LIMIT_OPTION, argument, option
from gluontune.cli._progress import progress_line
from gluontune.core import stats
from gluontune.core.errors import UsageError
from gluontune.parallel import environment, mpi
from gluontune.parallel.scripts import SCRIPTS, Layout
from gluontune.recipe import Recipe


def train(
    recipe: Recipe,
    given: dict[str, Any],
    out: Optional[Path] = option(None, "Save the RunResult to this JSON file."),
    checkpoint: Optional[Path] = option(
        None, "Keep checkpoints of this run in this folder; SIGTERM and Ctrl-C save too."
    ),
    checkpoint_every: str = option("5min", "Steps or time between checkpoints: 500steps, 90s, 5min."),
    keep: int = option(3, "Newest checkpoints to keep, beside the best one.", min=1),
    resume: bool = option(False, "Go on from the newest intact checkpoint, if there is one."),
    restart: int = option(0, "So many times, go on from the newest checkpoint after a process died or hung.", min=0),
    insecure_network: bool = option(
        False, "Let the ranks that srun, mpirun or torchrun started on several hosts meet without a password."
    ),
    list_nets: bool = typer.Option(False, "--list-nets", hidden=True),  # as --list net
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Train one recipe in a fresh process and show the result.

    Started several times by srun, mpirun, mpiexec, torchrun, horovodrun or MXNet's tracker, each process is a rank of
    one run, by --engine; rank 0 has the result.
    """
    from gluontune import train as room
    from gluontune.training.started import exit_code, follow, lead, recipe_of

    if list_nets:
        names = room.net_names()
        emit(names) if as_json else print("\n".join(names))
        return 0
    if checkpoint is None and (resume or restart):
        raise UsageError(f"--{'resume' if resume else 'restart'}: give the folder of the checkpoints: --checkpoint DIR")
    placed = dict(launched.get())
    place = environment.here() if not placed else None
    if place is not None:
        if place.waits:
            say("rank 0 starts the parameter server of its run: this process has nothing to do", to=stderr)
            return 0
        if (wanted := given.get("num_devices", place.world)) != place.world:
            raise UsageError(f"--num-devices {wanted}, and this is {place}: leave it out")
        if restart:
            raise UsageError(
                f"--restart {restart}: a launcher starts its ranks again (sbatch --requeue, torchrun --max-restarts), "
                f"and this is {place}: leave it out"
            )
        recipe = recipe_of(recipe, place)
        mpi.watch(place)
        if place.rank > 0:
            follow(recipe, place, insecure_network=insecure_network)
        say(f"{place}", to=stderr)
    plan = None if checkpoint is None else room.Checkpoints(checkpoint, checkpoint_every, keep, resume)
    if placed:
        meeting = room.Elastic.parse(ranks=recipe.num_devices, restarts=restart, **placed)
        result = room.run_elastic(recipe, meeting, plan, time_limit)
    else:
        with progress_line() as show:
            log = None if recipe.engine == "local" else lambda rank, line: say(f"[{rank}] {line}", to=stderr)
            how: dict[str, Any] = {"on_event": show, "on_log": log, "time_limit": time_limit}
            if place is not None:
                result = lead(recipe, place, plan, insecure_network=insecure_network, **how)
            else:
                result = room.run(recipe, checkpoints=plan, restarts=restart, **how)
    if out is not None:
        result.save(out)
    if as_json:
        emit(result.to_dict())
    elif result.ok:
        _trained(result)
    say(*(f"note: {note}" for note in result.notes), to=stderr)
    if result.error is not None:
        show_traceback(result.error)
        say(f"error: {result.error['message']} (while {result.error['phase']})", to=stderr)
    return exit_code(result)


def metric_line(metric: Mapping[str, Any]) -> str:
    """What validation showed, by epoch.

    >>> metric_line({"name": "accuracy", "mode": "max", "values": [0.5, 0.75]})
    'accuracy     50.0 75.0 % (by epoch)'
    >>> metric_line({"name": "rmse", "mode": "min", "values": [1.25, None]})
    'rmse         1.25 not finite (by epoch; smaller is better)'
    """
    name, values = metric.get("name", "accuracy"), metric.get("values", [])
    if name == "accuracy":
        return f"{name:<12} {' '.join(f'{100 * a:.1f}' for a in values)} % (by epoch)"
    shown = " ".join("not finite" if v is None else f"{v:.4g}" for v in values)
    way = "smaller" if metric["mode"] == "min" else "larger"
    return f"{name:<12} {shown} (by epoch; {way} is better)"


def _trained(result: Any) -> None:
    rate = result.samples_per_sec
    around = stats.bounds(rate)
    shown = f"95 %: {around[0]:,.0f}-{around[1]:,.0f}, " if around else ""
    print(f"throughput   {rate['median']:,.0f} samples/s ({shown}n={rate['n']} windows)")
    print(metric_line(result.val_metric))
    print(f"training     {sum(result.epoch_seconds):.1f} s in {result.steps} steps")
    shares = sorted(result.phases_pct.items(), key=lambda item: -item[1])
    if shares:  # a run that had nothing left to train has none
        print(f"step         {', '.join(f'{name} {share:.0f} %' for name, share in shares if share >= 1)}")
    if result.peak_rss_mib:
        print(f"memory       {result.peak_rss_mib:,.0f} MiB peak")


#: What ``train`` takes from ``launch`` alone.
_OURS = (
    "--engine --num-devices --hosts --rsh --python --port --connect-timeout --insecure-network --nnodes --rendezvous"
)


def launch(
    ranks: Optional[int] = option(
        None, "Training processes [default: 2, or all that --hosts has room for].", "-n", "--ranks", min=1
    ),
    engine: str = option(
        "kvstore",
        "shared-memory (sums of gradients, one machine), kvstore (MXNet's parameter server), horovod, "
        "async (shared weights, nobody waits), or ddp (PyTorch's, with train --backend torch).",
    ),
    hosts: Optional[str] = option(
        None, "Machines and the ranks on each, for mpirun: node1:4,node2:4. Default: all ranks here."
    ),
    rsh: Optional[str] = option(
        None,
        "Command that runs another on a host, called as RSH HOST COMMAND; such as 'ssh -p 2222' "
        "[default: ssh, which must need no password].",
    ),
    python: Optional[str] = option(None, "Python on the hosts, with gluontune [default: this one's path]."),
    port: int = option(
        0, "TCP port on the first host where ranks meet [default: a free one].", min=0, max=65535, show_default=False
    ),
    nnodes: Optional[str] = option(
        None, "With ddp, started on each machine: their number, or the least and the most: 1:4 (torchrun)."
    ),
    rendezvous: Optional[str] = option(None, "With ddp: HOST:PORT where the machines of --nnodes meet; one of them."),
    connect_timeout: Optional[float] = option(
        None,
        "Seconds in which each host must answer ssh [default: 30], or the least of --nnodes must meet [default: 600].",
        min=1,
        show_default=False,
    ),
    insecure_network: bool = option(
        False,
        "Let the hosts meet on a network: the engines have no password, and who reaches MXNet's kvstore can run "
        "code as you. For networks that are yours alone.",
    ),
    restart: int = option(0, "After a fault, go on from the newest checkpoint (train's --checkpoint) so often.", min=0),
    print_for: Optional[str] = option(
        None, "Start nothing; print what a cluster is given: slurm, slurm-array, mpi, kubernetes.", "--print"
    ),
    command: Optional[list[str]] = argument(None, "train and its options.", metavar="-- train …"),
) -> int:
    """Run `train` on several processes that exchange gradients; one merged result comes back.

    With --hosts, the installed mpirun (Open MPI's or MPICH's) starts them on each machine. All need this folder, the
    same gluontune and the same data, and must reach the first on any port, which --insecure-network must allow;
    GLUONTUNE_*, MXNET_*, OMP_* and NCCL_* go along. All ends when one rank or host fails.

    Without ssh, give the same command on each: launch --engine ddp --nnodes 1:4 --rendezvous
    node1:29400 -n 2 --restart 3 -- train --backend torch --checkpoint SHARED. Where a machine comes or goes, all go on
    from the newest checkpoint; -n is then of each machine.
    """
    from gluontune.cli.main import main

    if (place := environment.here()) is not None:
        raise UsageError(f"launch starts ranks, and this is already {place}: call gluontune train --engine {engine}")
    command = command or []
    studies = ["tta", "factors"] if print_for == "slurm-array" else []
    if not command or command[0] not in ["train", *studies]:
        given = " ".join(command) or "nothing"
        raise UsageError(f"launch runs `train`, not {given!r}: write gluontune launch -n 2 -- train --epochs 1")
    if taken := [flag for flag in _OURS.split() if any(word.split("=")[0] == flag for word in command)]:
        raise UsageError(f"{' and '.join(taken)} after `--`: launch's own options go before it (-n, --engine, …)")
    if print_for is not None:
        print(_script(print_for, command, engine, ranks, nnodes, hosts, insecure_network), end="")
        return 0
    options = ["--restart", str(restart)] if restart else []
    placed: dict[str, Any] = {}
    if nnodes is not None or rendezvous is not None:
        placed = {**_meeting(engine, hosts, nnodes, rendezvous), "join_s": connect_timeout or 600.0}
        ranks = ranks or 1
    elif hosts is not None:
        machines = mpi.Hosts.parse(
            hosts, rsh=rsh or None, python=python or None, port=port, connect_s=connect_timeout or 30.0,
            insecure_network=insecure_network,
        )  # fmt: skip
        world, tell = ranks or machines.total, partial(say, to=stderr)
        return mpi.launch(machines, world, command, engine, restart, tell)
    else:
        of_hosts = {"--rsh": rsh, "--python": python, "--port": port, "--insecure-network": insecure_network}
        if given_flags := [flag for flag, value in of_hosts.items() if value]:
            raise UsageError(f"{given_flags[0]} goes with --hosts")
    context = copy_context()
    context.run(launched.set, {**placed, "insecure_network": insecure_network} if placed else {})
    return context.run(main, [*command, "--engine", engine, "--num-devices", str(ranks or 2), *options])


def _script(
    kind: str, command: list[str], engine: str, ranks: int | None, nnodes: str | None, hosts: str | None,
    insecure_network: bool,
) -> str:  # fmt: skip
    """What a cluster is given."""
    if kind not in SCRIPTS:
        raise UsageError(f"--print {kind!r}: choose one of {', '.join(SCRIPTS)}")
    if hosts is not None and kind != "mpi":
        raise UsageError(f"--hosts: {kind} chooses the machines; give their number by --nnodes")
    if not (nnodes or "1").isdigit() or nnodes == "0":
        raise UsageError(f"--nnodes {nnodes!r}: give a number of machines")
    nodes, each = int(nnodes or 1), ranks or (1 if kind == "slurm-array" else 2)
    if hosts is not None:
        known = mpi.Hosts.parse(hosts)
        if len(set(known.slots)) > 1:
            raise UsageError(f"--hosts {hosts}: give each machine the same number of ranks")
        nodes, each = len(known.names), known.slots[0]
    return SCRIPTS[kind](Layout(tuple(command), engine, nodes, each, hosts, insecure_network))


def _meeting(engine: str, hosts: str | None, nnodes: str | None, rendezvous: str | None) -> dict[str, str]:
    if engine != "ddp":
        raise UsageError(f"--nnodes and --rendezvous are torchrun's: use --engine ddp, not {engine}")
    if hosts is not None:
        raise UsageError("--hosts starts all by mpirun, --nnodes is given on each machine: choose one")
    if nnodes is None or rendezvous is None:
        raise UsageError("--nnodes and --rendezvous go together: --nnodes 1:4 --rendezvous node1:29400")
    return {"nodes": nnodes, "rendezvous": rendezvous}


COMMANDS = (train, launch)
