"""The data of a project: samples of the script's own data set, or its captured batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.capture.interpret import bridge_name
from gluontune.capture.project.sections import Plan, draws_it
from gluontune.convert.graph.schemas import schema
from gluontune.convert.graph.symbol import Node
from gluontune.convert.migrate.expressions import expression
from gluontune.core.errors import literal
from gluontune.core.files import atomic_write

_TEMPLATES = Path(__file__).parent / "templates"
_MOST, _SECONDS = 256 * 2**20, 20.0  # bytes, and time, of samples


@dataclass
class DataText:
    """``data.py``, and the functions of operators.py that it uses."""

    text: str
    used: dict[str, Any] = field(default_factory=dict)


@dataclass
class Samples:
    """Arrays of a data set by their places in a batch."""

    arrays: dict[str, np.ndarray]
    batch_size: int
    order: str  # "rng.permutation(count)", "np.arange(count)", or "stored": own
    keep_last: bool
    own: np.ndarray | None = None
    left: str = ""  # what is not as in the script


def data_text(plans: Sequence[Plan], place: Path) -> tuple[DataText, list[str]]:
    """``data.py`` of consecutive steps of one structure, its arrays in ``place``; and what is left to do by hand."""
    first = plans[0]
    inputs = [n for n in first.inputs if not first.is_state(n)]
    made = DataText("")
    texts, drawn, constants, given = [], [], {}, []
    for at, number in enumerate(first.inputs):
        if number not in inputs:
            continue
        name, value = first.names[number], first.value(number)
        draw = draws_it(first, number)
        arrays = [np.asarray(plan.value(plan.inputs[at]).array) for plan in plans]
        if draw is not None:
            node = Node(bridge_name(draw.name), draw.name, schema(draw.name).typed(draw.attrs))
            text = expression(node, [], "torch.zeros(())", made.used)
            drawn.append(text)
            texts.append(text)
        elif value.source != "batch" and all(np.array_equal(a, arrays[0]) for a in arrays):
            constants[name] = arrays[0]
            texts.append(f'constants["{name}"]')
        else:
            given.append((name, number))
            texts.append(name)
    samples, why = _samples(first, given) if given else (None, "")
    by_hand = why if samples is None else samples.left
    if constants:
        _save(place / "constants.npz", constants)
    if samples is not None:
        own = {} if samples.own is None else {"order": samples.own}
        _save(place / "data.npz", {**{name: samples.arrays[first.value(n).name] for name, n in given}, **own})
    known = [name for name, _ in given]
    states = sum(first.is_state(n) for n in first.inputs)
    made.text = rendered(
        "data.py.j2", told="the script's samples" if samples is not None else "the captured batches", given=known,
        texts=texts, listed=f"[{', '.join(map(literal, known))}]",
        kind="samples" if samples is not None else "batches", drawn=drawn, constants=bool(constants), by_hand=by_hand,
        names=[first.names[n] for n in inputs] or ["nothing"], steps=len(plans), states=states,
        **({key: getattr(samples, key) for key in ("batch_size", "order", "keep_last")} if samples else {}),
    )  # fmt: skip
    return made, [f"data.py: {by_hand}"] if by_hand else []


def rendered(template: str, **words: Any) -> str:
    """A template of this folder with these words."""
    import jinja2

    text = (_TEMPLATES / template).read_text("utf-8")
    return jinja2.Template(text, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True).render(**words)


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with atomic_write(path) as stream:
        np.savez(stream, **arrays)


def _samples(plan: Plan, given: Sequence[tuple[str, int]]) -> tuple[Samples | None, str]:
    """The samples of the data set of a step's batch; or None, and why."""
    line = plan.value(given[0][1]).line
    loaders = plan.seen.loaders
    own = [plan.value(n).line for _, n in given if plan.value(n).source != "batch"]
    if own:
        where = next((f" ({each})" for each in own if each), "")
        return None, f"batches come from the script{where}; here are those that were captured"
    if len(loaders) != 1:
        return None, f"a step takes {len(loaders)} batches ({line}); here are those that were captured"
    loader = loaders[0]
    found = _of_loader(loader) if hasattr(loader, "_dataset") else _of_arrays(loader)
    if found is None:
        kind = type(loader).__name__
        return (
            None,
            f"{kind} ({line}) reads by code of MXNet's or the script's; here are the batches that were captured",
        )
    for _, number in given:
        value = plan.value(number)
        array = found.arrays.get(value.name)
        if array is None or array.shape[1:] != value.shape[1:] or array.dtype != np.dtype(value.dtype):
            return None, f"the samples ({line}) are made into batches by code of the script's; here are those captured"
        known = {row.tobytes() for row in array}
        if not found.left and not all(row.tobytes() in known for row in np.asarray(value.array)):
            found.left = "the samples are transformed at random: data.npz has one draw of each"
    return found, ""


def _of_loader(loader: Any) -> Samples | None:
    from gluontune.runtime import mxnet

    sampler, data = loader._batch_sampler, loader._dataset
    plain = ("default_batchify_fn", "default_mp_batchify_fn")
    if getattr(loader._batchify_fn, "__name__", "") not in plain or not hasattr(sampler, "_batch_size"):
        return None
    samples, begin, size, left = [], time.monotonic(), 0, ""
    for at in range(len(data)):
        sample = data[at]
        parts = sample if isinstance(sample, (tuple, list)) else [sample]
        samples.append([part.asnumpy() if hasattr(part, "asnumpy") else np.asarray(part) for part in parts])
        size += sum(part.nbytes for part in samples[-1])
        if size > _MOST or time.monotonic() - begin > _SECONDS:
            left = f"data.npz has the first {at + 1} of {len(data)} samples"
            break
    if not samples:
        return None
    arrays = {}
    for at, column in enumerate(zip(*samples)):
        if len({part.shape for part in column}) > 1:
            return None
        made = np.stack(column)
        arrays[str(at)] = mxnet().nd.array(made[:1], dtype=made.dtype).asnumpy().dtype.type(made)
    kind = type(sampler._sampler).__name__
    order = {"RandomSampler": "rng.permutation(count)", "SequentialSampler": "np.arange(count)"}.get(kind, "stored")
    own = None
    if order == "stored":
        own = np.asarray([at for at in sampler._sampler if at < len(samples)])
        left = left or f"the order of the samples is that of one epoch of {kind}"
    return Samples(arrays, sampler._batch_size, order, sampler._last_batch == "keep", own, left)


def _of_arrays(source: Any) -> Samples | None:
    """The arrays of an ``NDArrayIter``."""
    if type(source).__name__ != "NDArrayIter":
        return None
    arrays = {}
    for kind in ("data", "label"):
        for at, (_, array) in enumerate(getattr(source, kind)):
            found = array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)
            arrays[f"{kind}.{at}"] = found
    return Samples(arrays, source.batch_size, "rng.permutation(count)" if source.shuffle else "np.arange(count)", False)
