"""The sizes that a job uses: its net's layers in one forward pass, and the lengths of its gradients."""

from __future__ import annotations

from typing import Any

from gluontune.bench import _operator_list as sizes
from gluontune.recipe import Recipe

__all__ = ["traced"]


def traced(recipe: Recipe, arrays: int) -> list[dict[str, Any]]:
    """Cases of the layers of the recipe's net at its batch size, alike ones once with their ``count``.

    Args:
        recipe: names net, data and batch. arrays: devices of the all-reduce.
    """
    from gluontune.compute._traversal import walk
    from gluontune.runtime import mxnet
    from gluontune.train.job import load_job

    mx = mxnet()
    job = load_job(recipe)
    net = job.net()
    net.initialize(mx.init.Xavier(magnitude=2))
    batch = mx.nd.zeros((recipe.batch_size_per_device, *_item_shape(job)))
    seen: list[dict[str, Any]] = []
    hooks = [
        block.register_forward_hook(lambda layer, inputs, made: seen.extend(_cases(mx, layer, inputs, made)))
        for _, block in walk(net)
    ]
    net(batch)
    mx.nd.waitall()
    for hook in hooks:
        hook.detach()
    lengths = [p.data().size for p in net.collect_params().values() if p.grad_req != "null"]
    seen += [sizes.all_reduce(length, arrays) for length in (max(lengths), sum(lengths))]
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for case in seen:
        kept = merged.setdefault((case["kind"], case["name"]), {**case, "source": "job"})
        kept["count"] += 1
    return list(merged.values())


def _item_shape(job: Any) -> tuple[int, ...]:
    if job.dataset is None:
        return tuple(job.train[0][0].shape)
    height, width, channels = job.dataset.image_shape or (224, 224, 3)
    return channels, height, width


def _cases(mx: Any, layer: Any, inputs: Any, made: Any) -> list[dict[str, Any]]:
    """The forward and the training case of a layer; none for a layer of another kind."""
    nn, rnn = mx.gluon.nn, mx.gluon.rnn
    shape = getattr(inputs[0], "shape", None)
    if shape is None:
        return []
    if isinstance(layer, nn.Conv2D):
        how = layer._kwargs
        given = (
            shape,
            layer._channels,
            how["kernel"],
            how["stride"],
            how["pad"],
            how["num_group"],
            how["dilate"],
        )
        return [sizes.convolution(*given, training=training) for training in (False, True)]
    if isinstance(layer, nn.Dense):
        rows, inner = made.size // layer._units, layer.weight.shape[1]
        return [sizes.product(rows, layer._units, inner, training) for training in (False, True)]
    if isinstance(layer, rnn.rnn_layer._RNNLayer):
        steps, batch = shape[:2] if layer._layout == "TNC" else (shape[1], shape[0])
        found = []
        for depth in range(layer._num_layers):
            inner = shape[2] if depth == 0 else layer._dir * layer._hidden_size
            for training in (False, True):
                one = sizes.recurrent(layer._mode, steps, batch, inner, layer._hidden_size, training)
                found += [dict(one) for _ in range(layer._dir)]
        return found
    return []
