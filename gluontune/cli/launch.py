"""``gluontune launch``: the same recipe on several processes, here or on several machines."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import Any, Optional

from gluontune.cli._common import argument, launched, option, say, stderr
from gluontune.core.errors import UsageError

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
    from gluontune.parallel import environment, mpi
    from gluontune.parallel.mpi import Hosts

    if (place := environment.here()) is not None:
        raise UsageError(f"launch starts ranks, and this is already {place}: call gluontune train --engine {engine}")
    command = command or []
    studies = ["tta", "factors"] if print_for == "slurm-array" else []
    if not command or command[0] not in ["train", *studies]:
        given = " ".join(command) or "nothing"
        raise UsageError(f"launch runs `train`, not {given!r}: write gluontune launch -n 2 -- train --epochs 1")
    taken = [flag for flag in _OURS.split() if any(word.split("=")[0] == flag for word in command)]
    if taken:
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
        machines = Hosts.parse(
            hosts, rsh=rsh or None, python=python or None, port=port, connect_s=connect_timeout or 30.0,
            insecure_network=insecure_network,
        )  # fmt: skip
        world, tell = ranks or machines.total, partial(say, to=stderr)
        return mpi.launch(machines, world, command, engine, restart, tell)
    else:
        given_away = (("--rsh", rsh), ("--python", python), ("--port", port))
        for flag, value in (*given_away, ("--insecure-network", insecure_network)):
            if value:
                raise UsageError(f"{flag} goes with --hosts")
    context = copy_context()
    context.run(launched.set, {**placed, "insecure_network": insecure_network} if placed else {})
    return context.run(main, [*command, "--engine", engine, "--num-devices", str(ranks or 2), *options])


def _script(
    kind: str, command: list[str], engine: str, ranks: int | None, nnodes: str | None, hosts: str | None,
    insecure_network: bool,
) -> str:  # fmt: skip
    """What a cluster is given."""
    from gluontune.parallel.mpi import Hosts
    from gluontune.parallel.scripts import SCRIPTS, Layout

    if kind not in SCRIPTS:
        raise UsageError(f"--print {kind!r}: choose one of {', '.join(SCRIPTS)}")
    if hosts is not None and kind != "mpi":
        raise UsageError(f"--hosts: {kind} chooses the machines; give their number by --nnodes")
    if not (nnodes or "1").isdigit() or nnodes == "0":
        raise UsageError(f"--nnodes {nnodes!r}: give a number of machines")
    nodes, each = int(nnodes or 1), ranks or (1 if kind == "slurm-array" else 2)
    if hosts is not None:
        known = Hosts.parse(hosts)
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
