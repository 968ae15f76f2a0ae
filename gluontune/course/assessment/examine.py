"""Examination of a saved net on hidden images, in a limited process.

The child gets the images through its stdin, so that no file contains them, and returns the net's scores.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.core.arrays import gaps
from gluontune.core.interpreter import python
from gluontune.course.assessment.limits import devices
from gluontune.course.assessment.task import Task
from gluontune.runtime import child_env, mxnet

_SECONDS = 300.0
_BATCH = 250
_ALONE = 400  # images that are also predicted alone
_WAVERS = 0.02  # share of them whose answer may differ then


def examine(folders: Sequence[Path], images: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Predictions of rank 0's net, and the difference of the other ranks' parameters.

    ``folders`` are of the ranks' nets, ``images`` uint8 (N, H, W, C) by name, ``facts`` those of ``task.json``. Returns
    ``{"scores": {name: (N, classes)}, "difference": the largest share of an array or of answers; inf: other arrays,
    "forward_cpu_s": CPU seconds of one image, "start_cpu_s": of a process before its work}``, or ``{"error": …}``.
    """
    with tempfile.TemporaryDirectory(prefix="gluontune-examine-") as home:
        places = [str(folder) for folder in folders]
        limits = {"parent": os.getpid(), "memory_mib": 8192, "read": places, "write": [home, *devices()]}
        header = {"folders": places, "names": list(images), "facts": dict(facts)}
        content = io.BytesIO(json.dumps(header).encode() + b"\n")
        content.seek(0, io.SEEK_END)
        for array in images.values():
            np.save(content, array, allow_pickle=False)
        module = "gluontune.course.assessment"
        command = python("-m", f"{module}.limits", json.dumps(limits), *python("-m", f"{module}.examine"))
        env = {**child_env("as-installed"), "OMP_NUM_THREADS": "1", "HOME": home, "TMPDIR": home}
        try:
            done = subprocess.run(
                command, input=content.getvalue(), capture_output=True, env=env, cwd=home, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired:
            return {"error": f"the saved net took longer than {_SECONDS:.0f} s"}
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it printed nothing"]
        return {"error": f"the saved net cannot be run: {lines[-1][:300]}"}
    if "scores" in found:
        found["scores"] = {name: np.asarray(values) for name, values in found["scores"].items()}
    return found


def _joined(
    folders: Sequence[Path], images: np.ndarray, facts: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], float]:
    """The ranks' arrays, and the largest difference of one, as a share of its largest value.

    BatchNorm's running statistics may differ between ranks. None of these is believed, for a net of its own could be
    hidden in them: they are measured again, on ``images``.
    """
    mx = mxnet()
    held = [mx.nd.load(str(folder / "net-0000.params")) for folder in folders]
    plain = [{(name, str(a.dtype)): a.astype("float32").asnumpy() for name, a in arrays.items()} for arrays in held]
    apart = [(key[0], gap) for other in plain[1:] for key, gap in gaps(other, plain[0]).items()]
    names = {name for name, gap in apart if 0 < gap < np.inf}
    symbol = mx.sym.load(str(folders[0] / "net-symbol.json"))
    measured = _measured(symbol, held[0], names, images, facts) if names else {}
    difference = max((gap for name, gap in apart if name not in measured or gap == np.inf), default=0.0)
    return [{**arrays, **measured} for arrays in held], difference


def _net(folder: Path, arrays: Mapping[str, Any]) -> Any:
    mx = mxnet()
    mx.nd.save("net.params", dict(arrays))
    return mx.gluon.SymbolBlock.imports(str(folder / "net-symbol.json"), ["data"], "net.params")


def _measured(
    symbol: Any, held: Mapping[str, Any], names: set[str], images: np.ndarray, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of ``names`` that are statistics of ``symbol``'s normalizing layers: means and variances of their inputs.

    They begin as 0 and 1, and are measured from the first layer to the last one, as the net computes when it is asked.
    """
    mx = mxnet()
    places = {f"aux:{name}" for name in symbol.list_auxiliary_states()} & names
    layers, found = [], {}
    for node in symbol.get_internals():
        inputs = node.get_children()
        own = [f"aux:{name}" for name in inputs.list_outputs()[3:5]] if inputs is not None and len(inputs) == 5 else []
        if places.intersection(own):
            layers.append((inputs[0], int(node.attr("axis") or 1), own))
            found.update({own[0]: held[own[0]] * 0, own[1]: held[own[1]] * 0 + 1})
    images = np.random.default_rng().permutation(images)[: 2 * _BATCH]
    for inner, axis, own in layers:
        block, moments = mx.gluon.SymbolBlock(inner, mx.sym.var("data")), []
        mx.nd.save("part.params", {**held, **found})
        block.collect_params().load("part.params", ignore_extra=True, cast_dtype=True, dtype_source="saved")
        for answer in _answers(block, images, facts):
            values = np.moveaxis(answer.astype("float64"), axis, 0).reshape(answer.shape[axis], -1)
            moments.append(np.stack([values.mean(1), (values**2).mean(1)]) * len(answer) / len(images))
        mean, square = np.sum(moments, 0)
        for name, value in zip(own, (mean, np.maximum(square - mean**2, 0))):
            found[name] = mx.nd.array(value, dtype=held[name].dtype)
    return found


def _held(net: Any) -> dict[str, np.ndarray]:
    return {name: p.data().astype("float32").asnumpy() for name, p in net.collect_params().items()}


def _answers(net: Any, images: np.ndarray, facts: Mapping[str, Any]) -> Iterator[np.ndarray]:
    for start in range(0, len(images), _BATCH):
        batch = Task.of(facts).normalize(images[start : start + _BATCH])
        yield net(mxnet().nd.array(batch)).astype("float32").asnumpy()


def _predict(net: Any, images: np.ndarray, facts: Mapping[str, Any]) -> np.ndarray:
    parts = []
    for start, answer in zip(range(0, len(images), _BATCH), _answers(net, images, facts)):
        count = min(_BATCH, len(images) - start)
        if answer.shape != (count, facts["classes"]):
            raise ValueError(f"the net gives {answer.shape} for {count} images; wanted is (N, {facts['classes']})")
        parts.append(answer)
    found = np.concatenate(parts)
    if not np.isfinite(found).all():
        raise ValueError("the net gives NaN or infinity: training has diverged")
    return found


def _predict_all(net: Any, images: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Scores by name. Batches mix all images in random order, and some of the first name's are predicted alone, too.

    Otherwise a net could derive an image's class from its place or from the rest of its batch.
    """
    every, random = np.concatenate(list(images.values())), np.random.default_rng()
    order = random.permutation(len(every))
    found = np.empty((len(every), facts["classes"]))
    found[order] = _predict(net, every[order], facts)
    alone = random.permutation(len(next(iter(images.values()))))[:_ALONE]
    answers = [_predict(net, every[[i, i]], facts)[0].argmax() for i in alone]
    if (answers != found[alone].argmax(1)).mean() > _WAVERS:
        raise ValueError("its answer for an image depends on the other images of the batch, or on chance")
    ends = np.cumsum([len(batch) for batch in images.values()])
    return dict(zip(images, np.split(found, ends[:-1])))


def _answer(stream: Any) -> dict[str, Any]:
    header = json.loads(stream.readline())
    images = {name: np.load(stream, allow_pickle=False) for name in header["names"]}
    facts, first, folders = header["facts"], images[header["names"][0]], [Path(folder) for folder in header["folders"]]
    held, difference = _joined(folders, first, facts)
    net, *others = map(_net, folders, held)
    before, marks = _held(net), [time.process_time()]
    for _ in range(4):  # the first one allocates memory and starts threads, too
        _predict(net, first[:_BATCH], facts)
        marks.append(time.process_time())
    scores = _predict_all(net, images, facts)
    if any(gaps(_held(net), before).values()):
        raise ValueError("the net changes its own parameters when it is asked, and so may keep what it has seen")
    for other in others:
        share = float((_predict(other, first, facts).argmax(1) != scores[header["names"][0]].argmax(1)).mean())
        difference = max(difference, share if share > _WAVERS else 0.0)
    return {
        "scores": {name: one.tolist() for name, one in scores.items()}, "difference": difference,
        "forward_cpu_s": min(np.diff(marks)) / min(_BATCH, len(first)), "start_cpu_s": marks[0],
    }  # fmt: skip


def main() -> None:
    """Read header and images from stdin, write the answer to stdout."""
    say = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    stream = io.BytesIO(sys.stdin.buffer.read())
    try:
        answer = _answer(stream)
    except Exception as error:
        text = str(error).split("Stack trace:")[0].strip().splitlines() or [type(error).__name__]
        answer = {"error": f"the saved net cannot be run: {text[-1].strip()[:300]}"}
    json.dump(answer, say)
    say.close()


if __name__ == "__main__":
    main()
