"""The registry of methods, with one card each; imports no mxnet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gluontune.core.errors import UsageError, nearest
from gluontune.recipe.registry import Parameter, Registry

if TYPE_CHECKING:
    from gluontune.recipe import Recipe


@dataclass(frozen=True)
class MethodCard:
    """A description of a method.

    Args:
        name: the name in :data:`METHODS`.
        summary: one sentence.
        kind: its target, ``batch``, ``loss``, ``net``, ``gradient``, ``weights`` or ``validation``; ``recipe``: it
            sets other fields of a recipe, ``changes``.
        source: the paper.
        when, when_not: when it helps and when not.
        cost: in each step.
        defaults: its parameters and their defaults. bounds: lowest and highest value of each.
        changes: fields of a recipe, of kind ``recipe``.
    """

    name: str
    summary: str
    kind: str
    source: str
    when: str
    when_not: str
    cost: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)

    def check(self, params: Any) -> None:
        """Refuse unknown parameters and values out of range.

        Raises:
            UsageError: names the parameter, its value and the allowed ones.

        >>> METHODS["mixup"].check({"alpha": -1})
        Traceback (most recent call last):
        gluontune.errors.UsageError: alpha=-1: give a number from 0.001 to 10
        """
        if self.kind == "recipe":
            said = ", ".join(f"{name}={value!r}" for name, value in self.changes.items())
            raise UsageError(f"{self.name!r} is said by other fields: {said}")
        if params is True:
            return
        if not isinstance(params, Mapping):
            raise UsageError(f"give true, or a mapping of parameters to values, not {params!r}")
        for name, value in params.items():
            if name not in self.defaults:
                close = nearest(str(name), self.defaults) or list(self.defaults)
                hint = f": it has {', '.join(close)}" if close else ": it has none"
                raise UsageError(f"unknown parameter {name!r}{hint}")
            usual = self.defaults[name]
            low, high = self.bounds.get(name, (None, None))
            fault = Parameter(type(usual), low, high).fault(value)
            if fault:
                raise UsageError(f"{name}={value!r}: give {fault}")

    def values(self, params: Any) -> dict[str, Any]:
        """All parameters: the given ones over the defaults.

        >>> METHODS["ema"].values({"decay": 0.9})["decay"], METHODS["ema"].values(True)["decay"]
        (0.9, 0.998)
        """
        return {**self.defaults, **({} if params is True else params)}


def numbers_of(methods: Mapping[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """The methods of one kind in a recipe, each with all its parameters."""
    return {name: METHODS[name].values(params) for name, params in methods.items() if METHODS[name].kind == kind}


METHODS: Registry[MethodCard] = Registry("method")
# fmt: off
for _card in (
    MethodCard("label-smoothing",
        "the target is 1 - epsilon for the label, and epsilon spread over all classes", "loss",
        "Szegedy et al., Rethinking the Inception Architecture for Computer Vision, 2016, section 7",
        when="many epochs of a net that reaches nearly 100 % of its training data",
        when_not="short runs that underfit, noisy validation of the loss, distillation",
        cost="one log-softmax over the scores", defaults={"epsilon": 0.1}, bounds={"epsilon": (0.0001, 0.9)}),
    MethodCard("color-jitter",
        "brightness, contrast, saturation and hue of each training image are changed, in a random order", "batch",
        "Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural Networks, 2012, section 4.1; draws "
        "and order as torchvision's ColorJitter",
        when="photographs under light of all kinds",
        when_not="classes that differ in colour; images with one channel, whose hue and saturation are none",
        cost="some passes over each image on the host; with the loader's augment=random-resized-crop-flip-color-jitter "
        "on its threads", defaults={"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
        bounds={"brightness": (0, 10), "contrast": (0, 10), "saturation": (0, 10), "hue": (0, 0.5)}),
    MethodCard("randaugment",
        "a few operations on each training image, drawn from fourteen, all of one strength", "batch",
        "Cubuk et al., RandAugment: Practical automated data augmentation with a reduced search space, 2020; "
        "operations and strengths as torchvision's",
        when="long runs of large nets", when_not="short runs, which underfit; small nets",
        cost="some passes over each image on the host; with a loader's augment=…-randaugment on its threads",
        defaults={"num_ops": 2, "magnitude": 9}, bounds={"num_ops": (1, 10), "magnitude": (0, 30)}),
    MethodCard("cutout", "a square of each training image is set to the mean colour", "batch",
        "DeVries and Taylor, Improved Regularization of Convolutional Neural Networks with Cutout, 2017",
        when="small images and long runs: 100 epochs of CIFAR",
        when_not="runs of a few epochs, where it takes signal away",
        cost="a slice of each image", defaults={"length": 8}, bounds={"length": (1, 4096)}),
    MethodCard("random-erasing", "a random box of some training images is set to the mean grey", "batch",
        "Zhong et al., Random Erasing Data Augmentation, 2020; draws as torchvision's",
        when="objects that may be hidden in part", when_not="runs of a few epochs",
        cost="a slice of some images", defaults={"probability": 0.5, "smallest": 0.02, "largest": 0.33, "ratio": 0.3},
        bounds={"probability": (0.001, 1), "smallest": (0.001, 0.99), "largest": (0.001, 0.99), "ratio": (0.05, 1)}),
    MethodCard("mixup", "each training image is blended with another, and so are their labels", "batch",
        "Zhang et al., mixup: Beyond Empirical Risk Minimization, 2018",
        when="long runs of nets that overfit", when_not="short runs: the training loss stays high",
        cost="one blend of the batch and a second loss", defaults={"alpha": 0.2}, bounds={"alpha": (0.001, 10)}),
    MethodCard("cutmix",
        "a box of each training image comes from another, and the labels are weighted by area", "batch",
        "Yun et al., CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features, 2019",
        when="long runs of nets that overfit", when_not="short runs; objects that fill a corner only",
        cost="one copied box and a second loss", defaults={"alpha": 1.0}, bounds={"alpha": (0.001, 10)}),
    MethodCard("progressive-resizing", "training begins with smaller images, which cost less, and ends with whole ones",
        "batch",
        "Howard, Now anyone can train ImageNet in 18 minutes, 2018; Touvron et al., Fixing the train-test resolution "
        "discrepancy, 2019. The batch stays as it is, so by the linear rule the rate stays, too",
        when="large images; nets that end in global pooling",
        when_not="images that are small already; a net with a fixed input size is refused",
        cost="a resize of the batch, and less for all layers",
        defaults={"initial": 0.5, "delay": 0.3, "end": 0.8, "multiple": 4},
        bounds={"initial": (0.1, 1), "delay": (0, 1), "end": (0, 1), "multiple": (1, 64)}),
    MethodCard("squeeze-excite", "each residual branch weighs its channels by what the whole map holds", "net",
        "Hu et al., Squeeze-and-Excitation Networks, 2018",
        when="accuracy at the same depth",
        when_not="a time to accuracy that a smaller net reaches, too; nets without residual blocks are refused",
        cost="a pooling and two small dense layers a block, some 10 % of the step", defaults={"reduction": 16},
        bounds={"reduction": (1, 256)}),
    MethodCard("blurpool", "a small blur before the layers that take each second pixel", "net",
        "Zhang, Making Convolutional Networks Shift-Invariant Again, 2019; the blur before the convolution as in "
        "MosaicML's Composer",
        when="nets with few large strides, and images of many pixels", when_not="images of 32 pixels in short runs",
        cost="two poolings at each stride"),
    MethodCard("dirac-init", "convolutions begin as the identity on as many channels as they share", "net",
        "Zagoruyko and Komodakis, DiracNets, 2017; Jordan, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, 2024, "
        "section 3.2",
        when="plain nets without residual connections", when_not="residual nets, which have an identity already",
        cost="nothing after the start"),
    MethodCard("whitening-init",
        "the first convolution begins with the principal patches of the training images, scaled to unit variance",
        "net", "Page, How to train your ResNet 8: Bag of Tricks, 2019; Jordan, 94% on CIFAR-10 in 3.29 Seconds, 2024",
        when="short runs of small images", when_not="nets whose first convolution strides over large images",
        cost="nothing after the start; with freeze less than before",
        defaults={"freeze": False, "images": 2000, "epsilon": 5e-4},
        bounds={"images": (16, 1_000_000), "epsilon": (1e-12, 1)}),
    MethodCard("ema", "validation and the saved net take an exponential average of the weights", "weights",
        "Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992; Tarvainen and Valpola, "
        "Mean teachers are better role models, 2017 (the decay rises as (1 + t) / (10 + t))",
        when="a rate that is still high, or constant, when accuracy is asked for",
        when_not="a schedule that ends at zero, which averages by itself",
        cost="one pass over all parameters in each so many updates", defaults={"decay": 0.998, "every": 1},
        bounds={"decay": (0.5, 0.999999), "every": (1, 1000)}),
    MethodCard("lookahead", "after k updates the weights go back to a share of the way that they went", "weights",
        "Zhang et al., Lookahead Optimizer: k steps forward, 1 step back, 2019",
        when="noisy optimizers and high rates", when_not="runs of a few hundred updates at a rate that decays",
        cost="one pass over all parameters in k updates", defaults={"k": 5, "alpha": 0.5},
        bounds={"k": (2, 10_000), "alpha": (0.01, 0.99)}),
    MethodCard("selective-backprop", "the images with the highest losses alone are trained on", "loss",
        "Jiang et al., Accelerating Deep Learning by Focusing on the Biggest Losers, 2019; a fixed share of the batch "
        "as in MosaicML's Composer",
        when="large data sets in which most images are easy",
        when_not="noisy labels, which have the highest losses; the first epochs",
        cost="a forward pass more; forward and backward of the rest less",
        defaults={"keep": 0.5, "start": 0.5, "end": 0.9}, bounds={"keep": (0.05, 1), "start": (0, 1), "end": (0, 1)}),
    MethodCard("layer-freezing",
        "the first layers stop being trained before the last, and need no backward pass from then on", "gradient",
        "Brock et al., FreezeOut: Accelerate Training by Progressively Freezing Layers, 2017; stages of a straight "
        "line as in MosaicML's Composer",
        when="the last part of long runs, fine-tuning",
        when_not="runs of a few epochs, whose first layers still move",
        cost="nothing; the backward pass ends at the first layer that is trained",
        defaults={"start": 0.5, "end": 0.9, "level": 0.5, "stages": 4},
        bounds={"start": (0, 1), "end": (0, 1), "level": (0.001, 1), "stages": (1, 1000)}),
    MethodCard("batch-growth",
        "an update gathers more steps in the last part of the training, while the rate follows the images",
        "gradient", "Smith et al., Don't Decay the Learning Rate, Increase the Batch Size, 2018",
        when="a schedule that stays high, whose steps it averages; updates that cost much, or an exchange at each of "
        "them",
        when_not="a rate that falls to zero by itself; a run of few updates",
        cost="nothing; the updates that are left out are saved", defaults={"start": 0.5, "factor": 2, "times": 1},
        bounds={"start": (0, 1), "factor": (2, 64), "times": (1, 8)}),
    MethodCard("flip-validation",
        "the accuracy of the mean score over each validation image and its mirror image, reported apart",
        "validation",
        "Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural Networks, 2012, section 4.1; with "
        "shift=1 as airbench has it: Jordan, 2024",
        when="a figure that others have with test-time flips",
        when_not="digits and letters; a target is never compared with it",
        cost="validation takes three times as long, with shift seven times; with last the last one alone",
        defaults={"shift": 0, "last": False}, bounds={"shift": (0, 8)}),
    MethodCard("alternating-flip", "each image is mirrored in every second epoch, in place of at random", "recipe",
        "Jordan, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, 2024, section 3.6",
        when="CIFAR-like images and a few epochs to a hundred", when_not="one epoch alone",
        cost="nothing", changes={"augment": "pad-crop-alternating-flip"}),
    MethodCard("stochastic-depth", "residual branches are left out at random", "recipe",
        "Huang et al., Deep Networks with Stochastic Depth, 2016",
        when="deep residual nets and long runs", when_not="short runs",
        cost="a dropout a block", changes={"stochastic_depth": 0.2}),
    MethodCard("muon", "matrices are updated along orthogonalized momentum", "recipe",
        "Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024",
        when="time to accuracy of nets with matrices and convolutions",
        when_not="fine-tuning of what another optimizer has trained",
        cost="five products of each matrix with itself",
        changes={"optimizer": "muon", "learning_rate": None, "wd": None, "base_batch_size": None, "lr_scaling": None}),
    MethodCard("channels-padding", "the first convolution gets a fourth channel of zeros, for faster kernels", "recipe",
        "NVIDIA, Deep Learning Performance: channels in multiples of 4 and 8; as a rewrite here",
        when="3-channel images in MXNet on a CPU", when_not="PyTorch's engine, which needs none",
        cost="nothing", changes={"rewrites": ["pad-channels"]}),
):
    METHODS.add(_card.name, _card)
# fmt: on


def with_methods(recipe: Recipe, names: Sequence[str]) -> Recipe:
    """A recipe with some methods switched on, each with the numbers of its card.

    Args:
        names: of ``gt.methods.METHODS``.

    Raises:
        UsageError: an unknown name, or methods that contradict each other or the recipe.

    >>> from gluontune.recipe import Recipe
    >>> base = Recipe(loader="resident")
    >>> with_methods(base, ["mixup", "muon"]).differences(base)
    {'optimizer': 'muon', 'methods': {'mixup': True}}
    """
    changes: dict[str, Any] = {"methods": dict(recipe.methods), "rewrites": list(recipe.rewrites)}
    for name in names:
        card = METHODS[name]
        if card.kind != "recipe":
            changes["methods"][name] = True
        for changed, value in card.changes.items():
            changes[changed] = [*changes["rewrites"], *value] if changed == "rewrites" else value
    return recipe.override(**changes)
