"""ONNX: exported nets compute the same on real images; what cannot be exported says why."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnx
import pytest

from gluontune import compute, datasets, export, loading
from gluontune.cli.main import main
from gluontune.convert.graph.params import load_parameters, perturb
from gluontune.convert.onnx import check as export_check
from gluontune.convert.onnx.check import check_outputs
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.job import checkpoint
from gluontune.recipe import Recipe
from gluontune.runtime import mxnet
from gluontune.train import build_net

mx = mxnet()
SHAPE = (28, 28, 1)


def small_cnn(seed=0):
    mx.random.seed(seed)
    net = build_net("small_cnn", 10)
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 1, 28, 28)))
    perturb(net, seed)
    return net


def sample_batches(count=96, batch_size=32):
    data = datasets.open("sample")
    split = data.test.subset(range(count))
    loader = loading.build("threaded", split, batch_size=batch_size, image_shape=SHAPE, last_batch="keep")
    return loader, compute.InputStage(data.mean, data.std), data


@pytest.mark.parametrize("preprocess", [False, True], ids=["normalized", "pixels"])
def test_the_exported_net_agrees_on_real_images(tmp_path, preprocess):
    net, (loader, stage, data) = small_cnn(), sample_batches()
    made = export.to_onnx(
        net, tmp_path / "n.onnx", image_shape=SHAPE, mean=data.mean, std=data.std, preprocess=preprocess,
        classes=data.classes, metadata={"net": "small_cnn"},
    )  # fmt: skip
    assert made.dynamic_batch and made.input_dtype == ("uint8" if preprocess else "float32")
    with loader:
        found = export.agreement(net, tmp_path / "n.onnx", loader.epoch(0), stage)
    assert found.images == 96 and found.agree_pct == 100 and found.equal and found.relative_error < 1e-5
    assert found.accuracy == found.exported_accuracy
    model = onnx.load(str(tmp_path / "n.onnx"))
    props = {p.key: p.value for p in model.metadata_props}
    assert json.loads(props["classes"]) == list(data.classes) and json.loads(props["mean"]) == list(data.mean)
    assert model.opset_import[0].version == 13
    weights = {t.name for t in model.graph.initializer}
    assert not weights & {v.name for v in model.graph.input} and made.removed["inputs"] > 0


def test_a_fixed_batch_is_fixed_and_still_agrees(tmp_path):
    net = small_cnn()
    made = export.to_onnx(net, tmp_path / "n.onnx", image_shape=SHAPE, batch_size=4)
    assert made.input_shape == [4, 1, 28, 28] and not made.dynamic_batch
    loader, stage, _ = sample_batches(count=10, batch_size=10)
    with loader:
        found = export.agreement(net, tmp_path / "n.onnx", loader.epoch(0), stage)
    assert found.images == 8 and found.equal


def test_a_file_that_computes_something_else_is_found_out(tmp_path):
    net, path = small_cnn(), tmp_path / "n.onnx"
    export.to_onnx(net, path, image_shape=SHAPE)
    images = np.random.default_rng(0).normal(size=(4, 1, 28, 28)).astype("float32")
    assert check_outputs(net, path, images).equal
    model = onnx.load(str(path))
    weight = max(model.graph.initializer, key=lambda t: len(t.raw_data))
    values = onnx.numpy_helper.to_array(weight) * 1.001
    weight.CopyFrom(onnx.numpy_helper.from_array(values.astype("float32"), weight.name))
    onnx.save(model, str(path))
    found = check_outputs(net, path, images)
    assert not found.equal and found.relative_error > 1e-5


class Odd(mx.gluon.HybridBlock):
    """Has an operator that MXNet cannot translate."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(3)

    def hybrid_forward(self, F, x):
        return F.erfinv(self.dense(x) * 0.01, name="strange_layer")


def odd():
    net = Odd()
    net.initialize()
    return net


def test_an_operator_without_translation_is_named_with_its_layer(tmp_path):
    with pytest.raises(export.UnsupportedOperator, match=r"erfinv.*strange_layer") as caught:
        export.to_onnx(odd(), tmp_path / "n.onnx", image_shape=SHAPE)
    assert list(caught.value.layers) == ["erfinv"] and not (tmp_path / "n.onnx").exists()


def test_a_plain_block_is_refused(tmp_path):
    class Plain(mx.gluon.Block):
        def forward(self, x):
            return x

    with pytest.raises(UsageError, match="Plain is a plain Block"):
        export.to_onnx(Plain(), tmp_path / "n.onnx", image_shape=SHAPE)


def test_an_onnx_that_is_too_new_is_told_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx.mapping", None)
    with pytest.raises(GluontuneError, match=r"onnx>=1\.16\.2,<1\.18"):
        export.to_onnx(small_cnn(), tmp_path / "n.onnx", image_shape=SHAPE)


def test_parameters_from_files_and_their_faults(tmp_path):
    net = small_cnn(seed=3)
    net.save_parameters(str(tmp_path / "n.params"))
    arrays = {k: p.data().asnumpy() for k, p in net._collect_params_with_prefix().items()}
    np.savez(tmp_path / "n.npz", **{f"net.{k}": v for k, v in arrays.items()})
    image = mx.nd.ones((1, 1, 28, 28))
    for name in ("n.params", "n.npz"):
        other = small_cnn(seed=4)
        load_parameters(other, tmp_path / name)
        np.testing.assert_array_equal(other(image).asnumpy(), net(image).asnumpy())
    with pytest.raises(GluontuneError, match=r"n\.params: of another net: parameter"):
        load_parameters(build_net("mlp", 10), tmp_path / "n.params")
    wrong = build_net("small_cnn", 12)
    with pytest.raises(GluontuneError, match=r"parameter 11\.weight has shape \(10, 64\), the net's \(12, 0\)"):
        load_parameters(wrong, tmp_path / "n.params")
    (tmp_path / "cut.params").write_bytes((tmp_path / "n.params").read_bytes()[:100])
    for name, message in (("cut.params", "damaged or cut"), ("no.params", "no such file"), ("n.txt", "give a")):
        if name == "n.txt":
            (tmp_path / name).write_text("")
        with pytest.raises(GluontuneError, match=message):
            load_parameters(small_cnn(), tmp_path / name)


def test_the_command_exports_the_newest_checkpoint(tmp_path, capfd):
    net = small_cnn(seed=5)
    arrays = {f"parameter/net.{k}": p.data().asnumpy() for k, p in net._collect_params_with_prefix().items()}
    recipe = Recipe(net="small_cnn", dtype="bfloat16").to_dict()
    checkpoint.write(tmp_path / "ckpt" / checkpoint.name_of(7), {"recipe": recipe, "step": 7}, arrays)
    out = tmp_path / "n.onnx"
    code = main(["export", "onnx", str(tmp_path / "ckpt"), str(out), "--check-images", "200", "--preprocess", "--json"])
    found = json.loads(capfd.readouterr().out)
    assert code == 0 and found["net"] == "small_cnn" and found["check"]["images"] == 200
    assert found["check"]["agree_pct"] == 100 and found["check"]["equal"]
    images = np.random.default_rng(1).integers(0, 255, (3, 28, 28, 1), dtype="uint8")
    data = datasets.open("sample")
    staged = compute.InputStage(data.mean, data.std)(mx.nd.array(images, dtype="uint8")).asnumpy()
    assert check_outputs(net, out, staged, images).equal


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["onnx", "n.onnx"], 2, "RUN_OR_PARAMS OUT.onnx"),
        (["onnx", "n.params", "n.bin"], 2, "ends in .onnx"),
        (["onnx", "missing.params", "n.onnx", "--net", "mlp"], 1, "no such file"),
        (["onnx", "empty", "n.onnx"], 1, "no checkpoint in this folder"),
        (["zoo", "resnet5_v1"], 2, "unknown net 'resnet5_v1'"),
    ],
)
def test_wrong_usage_of_the_command(tmp_path, monkeypatch, capfd, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["export", *arguments]) == code
    assert message in " ".join(capfd.readouterr().err.split())


def test_networks_of_the_zoos_and_one_that_fails_with_its_cause(tmp_path):
    names = ["cifar_resnet20_v1", "odd", "mobilenetv2_0.5"]
    rows = export.export_zoo(lambda name: Odd() if name == "odd" else build_net(name, 10), tmp_path, names)
    assert [row["status"] for row in rows] == ["equal", "failed", "equal"], rows
    assert "erfinv" in rows[1]["reason"] and rows[0]["relative_error"] < 1e-5
    assert not list(tmp_path.glob("*.onnx"))


def test_the_int8_twin_computes_nearly_the_same_and_is_really_int8(tmp_path):
    net, (loader, stage, _) = small_cnn(), sample_batches()
    pixels = np.concatenate([images.copy() for images, _ in loader.epoch(0)])
    images = stage(mx.nd.array(pixels)).asnumpy()
    export.to_onnx(net, tmp_path / "net.onnx", image_shape=SHAPE)
    made = export.quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", images[:64])
    assert made["quantized"] == 3 and made["float_layers"] == 1  # three convolutions; the Dense stays
    assert made["agree_pct"] is None
    weights = [
        i for i in onnx.load(str(tmp_path / "int8.onnx")).graph.initializer if i.data_type == onnx.TensorProto.INT8
    ]
    assert len(weights) >= 3 and (tmp_path / "int8.onnx").stat().st_size < (tmp_path / "net.onnx").stat().st_size
    session = export_check.open_session(tmp_path / "int8.onnx")
    scores = session.run(None, {session.get_inputs()[0].name: images})[0]
    truth = net(mx.nd.array(images)).asnumpy()
    error = np.abs(scores - truth).max() / np.abs(truth).max()
    assert 1e-5 < error < 0.2  # another arithmetic, the same net
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(UsageError, match="need images"):
        export.quantize_onnx(tmp_path / "net.onnx", tmp_path / "none.onnx", images[:0])
    (tmp_path / "bad.onnx").write_bytes(b"no graph")
    with pytest.raises(GluontuneError, match=r"bad\.onnx: ONNX Runtime cannot make it int8"):
        export.quantize_onnx(tmp_path / "bad.onnx", tmp_path / "none.onnx", images)
    assert not (tmp_path / "none.onnx").exists()


def far_out():
    """A net in which one activation is unfit for int8: a huge channel hides the small ones that decide the class."""
    nn = mx.gluon.nn
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, padding=1, activation="relu"), nn.Conv2D(8, 3, padding=1, activation="relu"))
    net.add(nn.Conv2D(8, 3, strides=4, activation="relu"), nn.Dense(4))
    net.initialize(mx.init.Xavier(rnd_type="gaussian", magnitude=2))
    net(mx.nd.zeros((1, SHAPE[2], *SHAPE[:2])))
    wide, last = net[2].weight, net[3].weight
    factors = mx.nd.array([1e4] + [1] * 7)
    wide.set_data(wide.data() * factors.reshape((8, 1, 1, 1)))
    per_channel = last.shape[1] // 8
    last.set_data(last.data() / factors.repeat(per_channel).reshape((1, -1)))
    return net


def test_layers_that_int8_blurs_stay_float_until_the_classes_agree(tmp_path):
    mx.random.seed(3)
    net = far_out()
    images = np.random.default_rng(0).normal(size=(300, SHAPE[2], *SHAPE[:2])).astype("float32")
    export.to_onnx(net, tmp_path / "net.onnx", image_shape=SHAPE)
    source, target = tmp_path / "net.onnx", tmp_path / "int8.onnx"
    export.quantize_onnx(source, target, images)
    truth = net(mx.nd.array(images)).asnumpy().argmax(1)

    def agreement(images=images, truth=truth):
        session = export_check.open_session(target)
        return 100 * (session.run(None, {session.get_inputs()[0].name: images})[0].argmax(1) == truth).mean()

    assert agreement() < 90
    made = export.quantize_onnx(source, target, images, agree_pct=96)
    assert agreement() == pytest.approx(made["agree_pct"]) and made["agree_pct"] >= 98  # so that 96 are sure
    assert made["quantized"] == 2 and made["float_layers"] == 2
    others = images[::-1][:77] * 1.1
    made = export.quantize_onnx(source, target, images, agree_pct=90, judged=others)
    found = agreement(others, net(mx.nd.array(others)).asnumpy().argmax(1))
    assert found == pytest.approx(made["agree_pct"]) and found >= 94
    target.unlink()
    with pytest.raises(UsageError, match="up to 100"):
        export.quantize_onnx(source, target, images, agree_pct=101)


def test_a_net_that_int8_cannot_hold_is_refused_and_nothing_is_written(tmp_path):
    net = small_cnn()
    export.to_onnx(net, tmp_path / "net.onnx", image_shape=SHAPE)
    images = np.random.default_rng(0).normal(size=(32, SHAPE[2], *SHAPE[:2])).astype("float32")
    # Even 32 of 32 images do not prove 99 %.
    with pytest.raises(
        GluontuneError, match=r"net\.onnx: in int8 at most \d+\.\d\d % of 32 images .* is the net trained"
    ):
        export.quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", images, agree_pct=99)
    assert not (tmp_path / "int8.onnx").exists() and not list(tmp_path.glob(".*"))
