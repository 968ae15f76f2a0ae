"""Methods that change a Gluon net (PyTorch's engine exports it): its layers, or its first values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gluontune.compute._traversal import walk
from gluontune.compute.mode import residual_blocks
from gluontune.core.errors import UsageError
from gluontune.runtime import as_net_array, mxnet, set_data


def change_net(chosen: Mapping[str, Mapping[str, Any]], net: Any) -> None:
    """Change the layers of ``net`` by the methods of kind ``net``; before it is initialized."""
    if "blurpool" in chosen:
        add_blurpool(net)
    if "squeeze-excite" in chosen:
        add_squeeze_excite(net, **chosen["squeeze-excite"])


def set_values(chosen: Mapping[str, Mapping[str, Any]], net: Any, images: Any) -> None:
    """Set the first values of ``net`` by the methods of kind ``net``, after its shapes are known.

    ``images`` returns a number of normalized training images, float32 (N, C, H, W).
    """
    if "dirac-init" in chosen:
        dirac_init(net)
    if "whitening-init" in chosen:
        params = chosen["whitening-init"]
        whitening_init(net, images(params["images"]), params["epsilon"], params["freeze"])


def add_squeeze_excite(net: Any, reduction: int = 16) -> int:
    """Add a squeeze-and-excitation layer to each residual branch.

    Args:
        net: a net whose residual blocks have a ``body`` and a ``downsample``; changed. reduction: channels ÷ those of
            the small layer between, which has at least one.

    Returns:
        the number of blocks.

    Raises:
        UsageError: no such blocks.

    Source: Hu et al., 2018 (the standard position: after the branch, before the sum).

    >>> add_squeeze_excite(mxnet().gluon.model_zoo.vision.resnet18_v1(classes=10))
    8
    """
    from gluontune.methods._blocks import SqueezeExcite

    blocks = residual_blocks(net)
    if not blocks:
        raise UsageError(
            f"squeeze-excite: {type(net).__name__} has no residual block with a body and a downsample (ResNet v1 and "
            "ResNeXt have); leave it out"
        )
    for block in blocks:
        channels = _convolutions(block.body)[-1]._channels
        block.body.add(SqueezeExcite(channels, max(1, channels // reduction)))
    return len(blocks)


def add_blurpool(net: Any) -> int:
    """Blur before downsampling: before convolutions with a stride, and between a max-pooling and its stride.

    The first convolution, which reads the image, stays unchanged. The blur is the binomial filter (1 2 1) / 4 in both
    directions, made of two average poolings with zero padding. No parameter is added.

    Args:
        net: changed.

    Returns:
        the number of changed layers.

    Raises:
        UsageError: no layer with a stride.

    Source: Zhang, 2019; the blur before the convolution as in MosaicML's Composer (``blur_first``).

    >>> add_blurpool(mxnet().gluon.model_zoo.vision.resnet18_v1(classes=10))
    7
    """
    from gluontune.methods._blocks import BlurredConv2D, BlurredMaxPool2D

    nn = mxnet().gluon.nn
    changed, first = 0, True
    for _, block in walk(net):
        kind: type | None = None
        if type(block) is nn.Conv2D:
            kind = BlurredConv2D if max(block._kwargs["stride"]) > 1 and not first else None
            first = False
        elif type(block) is nn.MaxPool2D and set(block._kwargs["stride"]) == {2}:
            kind = BlurredMaxPool2D
        if kind is not None and block._kwargs.get("layout", "NCHW") == "NCHW":
            block.__class__ = kind
            changed += 1
    if not changed:
        raise UsageError(f"blurpool: no layer of {type(net).__name__} leaves pixels out; leave it out")
    return changed


def dirac_init(net: Any) -> int:
    """Set the first filters of each convolution but the first to the identity of one channel each.

    Args:
        net: initialized, its shapes known; changed.

    Returns:
        the number of convolutions.

    Raises:
        UsageError: no such convolution.

    Source: Zagoruyko and Komodakis, 2017; the share of the filters as in airbench (Jordan, 2024).

    >>> nn = mxnet().gluon.nn
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Conv2D(4, 3, in_channels=3), nn.Conv2D(8, 3, in_channels=4))
    >>> net.initialize()
    >>> dirac_init(net), net[1].weight.data()[1, :, 1, 1].asnumpy().tolist()
    (1, [0.0, 1.0, 0.0, 0.0])
    """
    changed = 0
    for layer in _convolutions(net)[1:]:
        if layer._kwargs["num_group"] != 1 or layer._kwargs.get("layout", "NCHW") != "NCHW":
            continue
        weight = _values(layer)
        count = min(weight.shape[:2])
        weight[:count] = 0
        height, width = weight.shape[2:]
        weight[np.arange(count), np.arange(count), height // 2, width // 2] = 1
        _set_weight(layer, weight)
        changed += 1
    if not changed:
        raise UsageError(f"dirac-init: {type(net).__name__} has no convolution behind its first; leave it out")
    return changed


def whitening_init(net: Any, images: np.ndarray, epsilon: float = 5e-4, freeze: bool = False) -> int:
    """Set the first convolution to whitening filters of the training images' patches.

    Args:
        net: initialized, its shapes known; changed. images: float32 (N, C, H, W) as the net gets them.
        epsilon: added to the eigenvalues. freeze: whether to exclude the filters from training.

    Returns:
        the number of set filters: at most twice the size of a patch, half of them negated.

    Raises:
        UsageError: no convolution that reads all channels of the images.

    Source: Page, 2019; Jordan, 2024, section 3.2.

    >>> net = mxnet().gluon.nn.Conv2D(8, 2, in_channels=3)
    >>> net.initialize()
    >>> whitening_init(net, np.random.default_rng(0).normal(size=(20, 3, 8, 8)).astype(np.float32))
    8
    """
    found = _convolutions(net)
    if not found or found[0]._kwargs["num_group"] != 1 or found[0]._kwargs.get("layout", "NCHW") != "NCHW":
        raise UsageError(f"whitening-init: {type(net).__name__} has no first convolution to set; leave it out")
    layer = found[0]
    weight = _values(layer)
    if weight.shape[1] != images.shape[1] or min(images.shape[2:]) < max(weight.shape[2:]):
        raise UsageError(
            f"whitening-init: the first convolution has filters of shape {weight.shape[1:]}, the images "
            f"{images.shape[1:]}; leave it out"
        )
    filters = whitening_filters(images, weight.shape[2], weight.shape[3], epsilon)
    count = min(len(filters), weight.shape[0] // 2)
    weight[:count], weight[count : 2 * count] = filters[:count], -filters[:count]
    _set_weight(layer, weight)
    if freeze:
        layer.weight.grad_req = "null"
    return 2 * count


def whitening_filters(images: np.ndarray, height: int, width: int, epsilon: float = 5e-4) -> np.ndarray:
    """The eigenvectors of the patches' covariance, each divided by the root of its eigenvalue; the largest first.

    Args:
        images: float (N, C, H, W). height, width: of a patch. epsilon: added to the eigenvalues.

    Returns:
        float32 (C · height · width, C, height, width): their outputs on such patches are uncorrelated, with variance 1.

    >>> rng = np.random.default_rng(0)
    >>> filters = whitening_filters(rng.normal(size=(20, 3, 8, 8)), 2, 2, 0.0)
    >>> filters.shape
    (12, 3, 2, 2)
    """
    windows: Any = np.lib.stride_tricks.sliding_window_view  # annotated for one axis only
    views = windows(images.astype(np.float64), (height, width), axis=(2, 3))
    patches = views.transpose(0, 2, 3, 1, 4, 5).reshape(-1, images.shape[1] * height * width)
    values, vectors = np.linalg.eigh(np.cov(patches, rowvar=False, bias=True))
    scaled = vectors.T[::-1] / np.sqrt(np.maximum(values[::-1], 0) + epsilon)[:, None]
    return scaled.reshape(-1, images.shape[1], height, width).astype(np.float32)


def _convolutions(net: Any) -> list[Any]:
    return [block for _, block in walk(net) if isinstance(block, mxnet().gluon.nn.Conv2D)]


def _values(layer: Any) -> np.ndarray:
    return layer.weight.data(layer.weight.list_ctx()[0]).asnumpy().copy()


def _set_weight(layer: Any, values: np.ndarray) -> None:
    set_data(layer.weight, as_net_array(mxnet().nd.array(values, dtype=values.dtype)))
