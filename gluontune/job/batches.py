"""Batches in any nesting and flavour (``mx.nd``, ``mx.np``, numpy), their outcomes, and the metric of a validation."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gluontune.core.arrays import flat, mapped
from gluontune.core.errors import GluontuneError
from gluontune.core.files import atomic_write, read_npz
from gluontune.job.job import Job
from gluontune.job.user_file import blaming
from gluontune.parallel.kvstore import split_batch
from gluontune.runtime import as_nd_array, as_net_array, mxnet


def first(value: Any) -> Any:
    """The first array of a batch: its length is that of the batch."""
    return flat(value)[0]


def as_batch(found: Any) -> tuple[Any, ...]:
    """A loader's item as a tuple; a single array becomes a tuple of one."""
    return tuple(found) if isinstance(found, (list, tuple)) else (found,)


def parts_of(batch: tuple[Any, ...], ctxs: list[Any]) -> list[tuple[Any, ...]]:
    """A batch cut along the first axis: one tuple of arrays for each context that gets a part.

    Arrays become ``mx.np`` ones if the process uses these (``npx.set_np()``).
    """
    cut = mapped(lambda array: dict(enumerate(split_batch(array, ctxs))), batch)  # a dict is one leaf
    return [as_net_array(tuple(mapped(operator.itemgetter(place), list(cut)))) for place in first(cut)]


def without_bfloat16(array: Any) -> Any:
    """An MXNet array, with bfloat16, unknown to numpy and MXNet's metrics, as float32."""
    return array.astype("float32") if np.dtype(array.dtype).names else array  # two bytes under a name


def to_numpy(array: Any) -> np.ndarray:
    """A copy on the host, after waiting; bfloat16 as float32."""
    return without_bfloat16(array).asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)


def described(batch: Any) -> str:
    """Shapes and types of a batch, for messages.

    >>> described((np.zeros((2, 3), "float32"), np.zeros(2, "int64")))
    '(2, 3) float32, (2,) int64'
    """
    return ", ".join(_one(array) for array in flat(batch))


def hint_of(batch: Any) -> str:
    """The most frequent fault of such a batch, for messages."""
    inputs = list(batch)[:-1] if isinstance(batch, (list, tuple)) and len(batch) > 1 else batch
    for kind, of in (("float64", batch), ("uint8", inputs)):  # labels may be whole numbers
        given = [str(np.dtype(a.dtype)) for a in flat(of) if getattr(a, "dtype", None) is not None]
        if found := next((name for name in given if kind in name), None):
            return f" ({found}: nets compute in float32; have data() give .astype('float32'))"
    return ""


def _one(array: Any) -> str:
    shape = getattr(array, "shape", None)
    if shape is None:
        return type(array).__name__
    return f"{tuple(shape)} {np.dtype(array.dtype).name if array.dtype is not None else ''}".strip()


def write_weights(path: str | Path, weights: dict[str, np.ndarray]) -> None:
    """Write parameters by their place in the net as a zip of numpy arrays (no pickle)."""
    with atomic_write(path) as stream:
        np.savez(stream, **weights)


def read_weights(path: str | Path) -> dict[str, np.ndarray]:
    try:
        return read_npz(path)
    except FileNotFoundError:
        raise GluontuneError(f"{path}: no such file of an individual's parameters") from None
    except (OSError, ValueError):
        raise GluontuneError(f"{path}: not a whole file of an individual's parameters") from None


_SMALLER = ("loss", "error", "mae", "mse", "rmse", "perplexity", "entropy", "distance", "nll", "fid", "divergence")
_LARGER = ("accuracy", "f1", "mcc", "auc", "precision", "recall", "iou", "psnr", "ssim", "bleu", "map", "pearson",
           "correlation", "score", "reward", "dice", "pcc")  # fmt: skip
_REGRESSIONS = ("L1Loss", "L2Loss", "HuberLoss", "LogisticLoss", "PoissonNLLLoss", "KLDivLoss", "CTCLoss")


def direction(name: str) -> str | None:
    """``min`` or ``max``: which values of the metric are better, by its name; None if unknown.

    >>> direction("rmse"), direction("top_k_accuracy_5"), direction("validation-loss"), direction("wumpus")
    ('min', 'max', 'min', None)
    """
    lowered = name.lower()
    words = lowered.replace("_", " ").replace("-", " ").replace("(", " ").replace(")", " ").split()
    for mode, known in (("min", _SMALLER), ("max", _LARGER)):
        if any(word in known for word in words) or any(k in lowered for k in known if len(k) > 4):
            return mode
    return None


@dataclass
class Outcome:
    """The outcome of one batch on one context.

    Args:
        loss: one value for each sample, shape (N,). output: of the net, or None if a job's step does not return it.
        label: the wanted output, or None.
    """

    loss: Any
    output: Any = None
    label: Any = None

    def shapes(self) -> str:
        return f"output {described(self.output)}; label {described(self.label)}"


class Score(Protocol):
    """Collects the outcomes of a validation into one figure.

    Attributes:
        name: such as ``accuracy``. mode: ``max`` or ``min``, which is better.
    """

    name: str
    mode: str

    def update(self, outcome: Outcome) -> None: ...

    def value(self) -> float: ...


class _Mean:
    """The mean of ``values`` of each outcome: of its samples, pixels or words."""

    def __init__(self, name: str, mode: str, values: Callable[[Outcome], Any]):
        self.name, self.mode, self._values = name, mode, values
        self._sum, self._count = 0.0, 0

    def update(self, outcome: Outcome) -> None:
        values = self._values(outcome)
        self._sum, self._count = self._sum + float(values.sum()), self._count + _size(values)

    def value(self) -> float:
        return self._sum / self._count


def array_score(name: str, mode: str, axis: int = -1) -> Score:
    """Accuracy, or the mean loss, of any library's arrays with ``argmax`` and ``sum``.

    Args:
        name: ``accuracy`` or another name, for the loss. mode: ``max`` or ``min``. axis: of the classes.
    """
    if name == "accuracy":
        return _Mean(name, mode, lambda outcome: outcome.output.argmax(axis) == outcome.label)
    return _Mean(name, mode, lambda outcome: outcome.loss)


class _Given:
    def __init__(self, metric: Any, mode: str | None, job: Job):
        self._metric, self._job = metric, job
        metric.reset()
        self.name = str(first(metric.get()[0]))
        better = mode or direction(self.name)
        if better is None:
            raise GluontuneError(
                f"{job.place('metric')}metric() gives {self.name!r}, whose name does not tell whether more is better: "
                "add metric_mode = 'max' or 'min' to the job"
            )
        self.mode = better

    def update(self, outcome: Outcome) -> None:
        if isinstance(self._metric, mxnet().metric.Loss):
            self._metric.update(0, [as_nd_array(outcome.loss)])
            return
        if outcome.output is None:
            raise GluontuneError(
                f"{self._job.place('step')}metric() needs the net's output: have step() return (loss, output)"
            )
        labels, outputs = flat(outcome.label), [without_bfloat16(each) for each in flat(outcome.output)]
        with blaming(self._job.file, "metric()", self._job.function("metric"), outcome.shapes()):
            self._metric.update(as_nd_array(labels), as_nd_array(outputs))
            self._metric.get()

    def value(self) -> float:
        return float(first(self._metric.get()[1]))


def make_score(job: Job, loss: Any, sample: Outcome) -> Score:
    """The metric of a job.

    Args:
        loss: the job's loss block. sample: the outcome of one validation batch, for shapes and types.

    Raises:
        GluontuneError: ``metric()`` returns no metric, or one of unknown direction.

    >>> nd, losses = mxnet().nd, mxnet().gluon.loss
    >>> one = Outcome(loss=nd.array([0.1, 2.0]), output=nd.array([[9, 0], [8, 1]]), label=nd.array([0, 1]))
    >>> loss = losses.SoftmaxCrossEntropyLoss()
    >>> score = make_score(Job(net=lambda: None, loss=lambda: loss, classes=2), loss, one)
    >>> score.update(one)
    >>> score.name, score.mode, score.value()
    ('accuracy', 'max', 0.5)
    """
    given, mode = job.metric()
    if given is not None:
        return _Given(given, mode, job)
    if _is_classification(job, loss, sample):
        return _Mean("accuracy", "max", lambda outcome: hits_of(loss, outcome))
    return _Mean("loss", "min", lambda outcome: to_numpy(outcome.loss))


def _is_classification(job: Job, loss: Any, sample: Outcome) -> bool:
    output, label = sample.output, sample.label
    if getattr(output, "shape", None) is None or getattr(label, "shape", None) is None:
        return False
    losses = mxnet().gluon.loss
    if job.step is None:
        if isinstance(loss, losses.SoftmaxCrossEntropyLoss):
            return True
        if isinstance(loss, losses.SigmoidBinaryCrossEntropyLoss):
            return _size(output) == _size(label)
        if type(loss).__name__ in _REGRESSIONS:
            return False
    scores = len(output.shape) == 2 and output.shape[1] > 1 and tuple(label.shape) == (output.shape[0],)
    if job.classes is not None:
        return scores and output.shape[1] >= job.classes
    return scores and np.dtype(label.dtype).kind in "iu"


def hits_of(loss: Any, outcome: Outcome) -> np.ndarray:
    """1 for a right class, 0 otherwise; one value for each label.

    Labels are class numbers, or one-hot; two classes of a ``SigmoidBinaryCrossEntropyLoss`` differ by their sign.
    """
    output, label = to_numpy(outcome.output), to_numpy(outcome.label)
    if isinstance(loss, mxnet().gluon.loss.SigmoidBinaryCrossEntropyLoss):
        edge = 0.5 if loss._from_sigmoid else 0.0
        return ((output > edge).reshape(-1) == (label > 0.5).reshape(-1)).astype("float32")
    axis = getattr(loss, "_axis", -1)
    if label.shape == output.shape:
        label = label.argmax(axis)
    found = output.argmax(axis)
    if found.size != label.size:
        raise GluontuneError(f"an output of shape {output.shape} has no class for each label of {label.shape}")
    return (found.reshape(-1) == label.reshape(-1)).astype("float32")


def finite(value: float) -> float | None:
    """A value for JSON."""
    return float(value) if math.isfinite(value) else None


def _size(array: Any) -> int:
    return int(np.prod(array.shape))
