"""A job's net for PyTorch's engine: built, initialized and tried by MXNet in another process, written as a graph.

``python -m gluontune.engines.torch.export FD PARENT`` reads a recipe from stdin and writes the symbols of net and loss,
the parameters of the seeded start and further facts to the nameless file FD. It takes seconds and some hundred MiB, so
rank 0 of a machine writes one export into memory shared by all ranks (:mod:`gluontune.parallel.shared`): first its size
in bytes, written last, then a byte for each rank that is set after reading. The last to read empties the memory.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import python
from gluontune.core.processes import die_with_parent, how_it_ended
from gluontune.core.reading import parse_json
from gluontune.engines import ENGINES
from gluontune.recipe import Recipe

_TRIED_BATCHES = 2  # of the training data: enough to try one, and for the shapes
_REFUSES, _NEEDS_MXNET = 3, 4  # exit codes of a process that has written the reason of a refusal
_SIZE = struct.Struct("<Q")  # bytes of the facts, which precede the arrays
(EXPORT_VARIABLE,) = ENGINES["torch"].shared  # the path of the memory; without it, each rank exports
_LOOK_S = 0.02


@dataclass
class Exported:
    """The parts of a job for PyTorch's engine.

    Args:
        net, loss: symbols as JSON; the loss takes output and label, by the names ``takes``. training: the net's in
            training mode, if it differs, else None. arrays: of the seeded start, by Gluon's names.
        names: Gluon's name to the parameter's place in the net, as in checkpoints.
        data: name of the data set. metric: its name and mode, ``accuracy`` or ``loss``. axis: of the classes.
        lr_mult, wd_mult: of single parameters. frozen: untrained parameters. layers: the trained ones of each layer.
    """

    net: str
    training: str | None
    loss: str
    takes: list[str]
    arrays: dict[str, np.ndarray]
    names: dict[str, str]
    data: str
    metric: dict[str, str]
    axis: int
    lr_mult: dict[str, float]
    wd_mult: dict[str, float]
    frozen: list[str]
    layers: list[list[str]]

    def renamed(self, gluon_names: Mapping[str, str]) -> Exported:
        """The same with a module's names of the arrays; ``gluon_names``: Gluon's by the module's, where they differ."""
        place = {name: place for place, name in gluon_names.items()}
        rekeyed = {
            field: {place.get(name, name): value for name, value in getattr(self, field).items()}
            for field in ("names", "lr_mult", "wd_mult")
        }
        frozen = [place.get(name, name) for name in self.frozen]
        layers = [[place.get(name, name) for name in layer] for layer in self.layers]
        return dataclasses.replace(self, **rekeyed, frozen=frozen, layers=layers)  # type: ignore[arg-type]

    def packed(self) -> bytes:
        """Its bytes, for another process."""
        facts = dataclasses.asdict(dataclasses.replace(self, arrays={}))
        text, held = json.dumps(facts).encode(), io.BytesIO()
        np.savez(held, **self.arrays)
        return _SIZE.pack(len(text)) + text + held.getvalue()

    @classmethod
    def unpacked(cls, content: bytes) -> Exported:
        """Restore the result of :meth:`packed`, to the bit.

        >>> net = Exported("{}", None, "{}", [], {"w": np.ones(2)}, {"w": "0.w"}, "sample", {}, -1, {}, {}, [], [["w"]])
        >>> again = Exported.unpacked(net.packed())
        >>> again.arrays["w"].tolist(), again.names, again.layers
        ([1.0, 1.0], {'w': '0.w'}, [['w']])
        """
        (size,) = _SIZE.unpack_from(content)
        facts = parse_json(content[_SIZE.size : _SIZE.size + size])
        with np.load(io.BytesIO(content[_SIZE.size + size :])) as held:
            return cls(**{**facts, "arrays": {name: held[name] for name in held.files}})


def exported(recipe: Recipe) -> Exported:
    """The job of a recipe, exported by a process with mxnet."""
    with tempfile.TemporaryFile() as out:
        done = subprocess.run(
            python("-m", "gluontune.engines.torch.export", str(out.fileno()), str(os.getpid())),
            input=json.dumps(recipe.to_dict()), capture_output=True, text=True, check=False, pass_fds=(out.fileno(),),
        )  # fmt: skip
        out.seek(0)
        content = out.read()
    if done.returncode in (_REFUSES, _NEEDS_MXNET):
        kind = GluontuneError if done.returncode == _REFUSES else NotExported
        raise kind(content.decode("utf-8"))
    if done.returncode != 0 or not content:
        name = "the process that exports the net from MXNet"
        raise GluontuneError(how_it_ended(name, done.returncode, done.stderr))
    return Exported.unpacked(content)


def exported_once(recipe: Recipe, rank: int, world: int) -> Exported:
    """The job of a recipe, exported by rank 0, or by this process without shared memory."""
    path = os.environ.get(EXPORT_VARIABLE)
    if world == 1 or path is None:
        return exported(recipe)
    if rank == 0:
        found = exported(recipe)
        _share(path, found.packed(), world)
    else:
        found = Exported.unpacked(_await(path, world))
    _done(path, rank, world)
    return found


def _share(path: str, content: bytes, world: int) -> None:
    with open(path, "r+b") as file:
        file.seek(_SIZE.size + world)
        file.write(content)
        file.flush()
        file.seek(0)
        file.write(_SIZE.pack(len(content)))


def _await(path: str, world: int) -> bytes:
    """Wait for rank 0; if it fails, the launcher ends this process."""
    while True:
        try:
            with open(path, "rb") as file:
                head = file.read(_SIZE.size)
                size = _SIZE.unpack(head)[0] if len(head) == _SIZE.size else 0
                if size:
                    file.seek(_SIZE.size + world)
                    return file.read(size)
        except OSError as error:
            raise GluontuneError(f"the process that had started this rank is gone: {error.strerror}") from error
        time.sleep(_LOOK_S)


def _done(path: str, rank: int, world: int) -> None:
    """Mark this rank as finished; the last one empties the memory."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(_SIZE.size + rank)
        file.write(b"\1")
        file.seek(_SIZE.size)
        if file.read(world) == b"\1" * world:
            file.truncate(0)


def export_job(recipe: Recipe) -> Exported:
    """Build the recipe's job with MXNet, and try it on one batch."""
    from gluontune.compute.tracing import place_of_branch, traced
    from gluontune.engines.mxnet.session import Session
    from gluontune.methods.losses import trained_layers

    few = _TRIED_BATCHES * recipe.batch_size_per_device
    if "whitening-init" in recipe.methods:  # it reads more images, the same on both engines
        few = recipe.train_samples or sys.maxsize
    plain = recipe.override(
        backend="mxnet", engine="local", num_devices=1, devices="cpu", dtype="float32", hybridize="imperative",
        train_samples=min(few, recipe.train_samples or few),
        val_samples=min(few, recipe.val_samples or few),
    )  # fmt: skip
    session = Session(plain)
    try:
        session.build()
        work, loss_block = session.work, session.training_step.loss
        job = work.job
        if job.step is not None:
            raise NotExported(f"{job.place('step')}the job's step() computes with MXNet's arrays")
        if job.dataset is None:
            raise NotExported(f"{job.place('data')}data() returns Gluon datasets")
        if job.metric()[0] is not None:
            raise NotExported(f"{job.place('metric')}the job's metric() is one of MXNet's")
        made = work.net if work.feed.stage is None else work.net.net
        try:
            net, loss = traced(made), traced(loss_block, 2)
        except GluontuneError as error:
            raise NotExported(f"{job.place('net')}{error}") from error
        if net.train is None:
            raise NotExported(f"{job.place('net')}{place_of_branch(made)}: {net.why}")
        if loss.differs:
            where = place_of_branch(loss_block)
            raise NotExported(f"{job.place('loss')}the loss computes something else in training: {where}")
        if not set(loss.names) <= set(loss.predict.list_inputs()):
            raise NotExported(f"{job.place('loss')}the loss does not read both output and label")
        params = list(work.net.collect_params().values())
        places = {p.name: place for place, p in work.parameters.items()}
        values = work.host_weights()
        wanted = {*net.predict.list_inputs(), *net.train.list_inputs()}
        return Exported(
            net=net.predict.tojson(), training=net.train.tojson() if net.differs else None,
            loss=loss.predict.tojson(), takes=loss.names,
            arrays={name: values[place] for name, place in places.items() if name in wanted},
            names={name: place for name, place in places.items() if name in wanted}, data=job.dataset.name,
            metric=session.site()["metric"], axis=int(getattr(loss_block, "_axis", -1)),
            lr_mult={p.name: p.lr_mult for p in params if p.lr_mult != 1.0},
            wd_mult={p.name: p.wd_mult for p in params if p.wd_mult != 1.0},
            frozen=[p.name for p in params if p.grad_req == "null"],
            layers=[[p.name for p in layer if p.name in wanted] for layer in trained_layers(work.net)],
        )  # fmt: skip
    finally:
        session.close()


class NotExported(GluontuneError):
    """The job cannot be computed without mxnet; the message says why."""


def _main() -> int:
    die_with_parent(int(sys.argv[2]))
    code = 0
    try:
        content = export_job(Recipe.from_dict(json.loads(sys.stdin.read()))).packed()
    except GluontuneError as error:
        content = " ".join(str(error).split()).encode("utf-8")
        code = _NEEDS_MXNET if isinstance(error, NotExported) else _REFUSES
    except Exception as error:  # the caller adds the place
        traceback.print_exc()
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
        content, code = told.encode("utf-8"), _REFUSES
    with open(int(sys.argv[1]), "wb") as out:
        out.write(content)
    return code


if __name__ == "__main__":
    sys.exit(_main())
