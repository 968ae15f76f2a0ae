"""``gluontune bench training``: contenders, figures, and twins that are twins."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from gluontune import runtime
from gluontune.bench import training
from gluontune.bench._mxnet_training import make
from gluontune.bench.contender import OURS, Contender, Entrant
from gluontune.cli.main import main
from gluontune.compute import bfloat16_support
from gluontune.errors import GluontuneError, UsageError
from gluontune.optim import TunedTrainer

AMX = ["bfloat16, AMX", "bfloat16, AMX, narrow in float32"]
SHAPES = {  # arrays that are trained, and their numbers
    "cifar_resnet20_v1": (65, 272_474),
    "small_vgg": (28, 2_198_602),
}


def contender(name, peer, rates, **info):
    found = Contender(Entrant(name, peer, "x:y"))
    found.rates, found.info = list(rates), info
    return found


def test_the_bad_is_told_in_one_line():
    with pytest.raises(UsageError, match="did you mean cifar_resnet20_v1"):
        training.run(["cifar_resnet20"])
    with pytest.raises(UsageError, match="at least 1"):
        training.run(["small_vgg"], batch_sizes=[0])
    with pytest.raises(UsageError, match="no name holds this; there are"):
        training.run(["small_vgg"], only=["tensorflow"])


def test_every_tuned_contender_has_the_same_threads(tmp_path):
    found = training.entrants("cifar_resnet20_v1", 64, 3, tmp_path / "python")
    names = [e.name for e in found]
    assert len(set(names)) == len(names)
    for entrant in found:
        assert entrant.slices == "steps", "MXNet's steps are queued: a slice counts them"
        if "as installed" in entrant.name:
            assert entrant.env == {}
        else:
            assert entrant.env["OMP_NUM_THREADS"] == "3"
    assert {e.peer for e in found} == {OURS, "MXNet", "PyTorch"}
    assert all((e.python is not None) == (e.peer == "PyTorch") for e in found)


@pytest.mark.parametrize(
    "flags, level, ours",
    [
        (["avx2"], "absent", ["float32"]),
        (["avx512_bf16"], "absent", ["float32", "bfloat16"]),
        (["avx512_bf16", "amx_bf16"], "refused", ["float32", "bfloat16"]),
        (["avx512_bf16", "amx_bf16"], "granted", ["float32", "bfloat16", *AMX]),
    ],
)
def test_types_that_the_machine_has(flags, level, ours, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "bfloat16_support", lambda: bfloat16_support(set(flags)))
    monkeypatch.setattr(runtime, "amx_support", lambda: SimpleNamespace(level=level))
    found = training.entrants("small_vgg", 8, 1, tmp_path / "python")
    names = [e.name for e in found if e.peer == OURS and e.name != "gluontune, two rewrites, float32"]
    assert [n for n in names if "on PyTorch" not in n] == [f"gluontune {name}" for name in ours]
    bridged = [f"gluontune on PyTorch, {way}{d}" for d in ours[:2] for way in ("", "compiled, ")]
    assert [n for n in names if "on PyTorch" in n] == bridged
    amx = [e for e in found if e.env.get("DNNL_MAX_CPU_ISA") == "AVX512_CORE_AMX"]
    assert len(amx) == (2 if level == "granted" else 0)
    assert sum(e.peer == "PyTorch" for e in found) == (4 if ours == ["float32"] else 8)


def test_figures_take_the_best_of_each_and_pairs_within_rounds():
    field = [
        contender("MXNet as installed, imperative", "MXNet", [10, 20, 10]),
        contender("MXNet tuned, static", "MXNet", [50, 50, 50]),
        contender("gluontune float32", OURS, [30, 60, 30]),
        contender("gluontune bfloat16", OURS, [40, 80, 40]),
        contender("gluontune bfloat16, AMX, narrow in float32", OURS, [38, 76, 38]),  # no float32 row
        contender("PyTorch eager float32", "PyTorch", [15, 30, 15]),
        contender("PyTorch compile bfloat16", "PyTorch", [32, 64, 32]),
        contender("PyTorch eager bfloat16", "PyTorch", [99]),  # did not last
    ]
    found = training._figures(field)
    assert {name: ratio["median"] for name, ratio in found.items()} == {
        "ours_to_mxnet_imperative": 4.0,
        "ours_to_pytorch": 1.25,
        "float32_to_pytorch": 2.0,
    }
    assert found["ours_to_pytorch"]["theirs"] == "PyTorch compile bfloat16"
    assert "ours_to_pytorch" not in training._figures(field[:5])


def test_several_cases_are_joined_by_geometric_means():
    def case(net, ratio):
        ours = {"name": "gluontune bfloat16", "ratio_to": {"PyTorch": {"median": ratio}}}
        figures = {"ours_to_pytorch": {"median": ratio}}
        extra = {"image_size": 32, "parameters": 1, "allocator_of_pytorch": "glibc", "machine": {}, "versions": {}}
        return {"net": net, "batch_size": 64, "rows": [{"name": net}], "ours": ours, "figures": figures, **extra}

    found = training._join([case("a", 2.0), case("b", 0.5)], {"threads": 2})
    assert found["figures"]["ours_to_pytorch"] == {"median": pytest.approx(1.0), "cases": 2}
    assert found["ours"]["ratio_to"]["PyTorch"]["median"] == pytest.approx(1.0)
    assert [row["name"] for row in found["rows"]] == ["a", "b"]


def test_other_shapes_are_no_twin():
    field = [contender("a", OURS, [1], parameter_shapes=[[2, 3]]), contender("b", "PyTorch", [1])]
    assert training._same_shapes("net", field) == [[2, 3]]
    field[1].info["parameter_shapes"] = [[2, 4]]
    with pytest.raises(GluontuneError, match="other parameters in b than in a"):
        training._same_shapes("net", field)


def test_ours_steps_with_our_trainer_and_mxnets_with_gluons(tmp_path):
    for entrant in training.entrants("small_vgg", 8, 1, tmp_path / "python"):
        if entrant.peer != "PyTorch" and "on PyTorch" not in entrant.name:
            assert entrant.settings.get("trainer", "mxnet") == ("gluontune" if entrant.peer == OURS else "mxnet")


@pytest.mark.parametrize("net", sorted(SHAPES))
def test_the_torch_engines_step_trains_the_same_net(net):
    pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")
    from gluontune.bench import _bridged_training

    work = _bridged_training.make(net, 4, training.NETS[net], threads=1)
    layers, numbers = SHAPES[net]
    shapes = work.info["parameter_shapes"]
    assert (len(shapes), sum(map(math.prod, shapes))) == (layers, numbers)
    assert shapes == make(net, 4, training.NETS[net]).info["parameter_shapes"]
    before = work.last_loss()
    for _ in range(6):
        assert work.step() == 4
    assert work.last_loss() < before


@pytest.mark.parametrize("trainer", ["mxnet", "gluontune"])
@pytest.mark.parametrize("net", sorted(SHAPES))
def test_our_step_trains_what_it_says(net, trainer):
    rewrites = ("pool-to-mean", "fuse-bn-relu")
    work = make(net, 4, training.NETS[net], mode="static", rewrites=rewrites, trainer=trainer)
    assert isinstance(work.trainer, TunedTrainer) == (trainer == "gluontune")
    layers, numbers = SHAPES[net]
    shapes = work.info["parameter_shapes"]
    assert (len(shapes), sum(map(math.prod, shapes))) == (layers, numbers)
    before = work.last_loss()
    for _ in range(6):
        assert work.step() == 4
    work.sync()
    assert np.isfinite(before) and work.last_loss() < before, "it learns its one batch"


def test_the_command_gives_the_document_and_names_what_is_missing(tmp_path, capfd):
    command = "bench training --net cifar_resnet20_v1 --batch-size 2 --rounds 1 --seconds 0.05 --threads 1 --json"
    parts = ["--only", "gluontune float32", "--only", "imperative", "--only", "eager float32"]
    out = tmp_path / "found.json"
    arguments = [*command.split(), *parts, "--peers", str(tmp_path / "none"), "--out", str(out)]
    assert main(arguments) == 0
    found = json.loads(capfd.readouterr().out)
    assert found == json.loads(out.read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["PyTorch eager float32"]["status"] == "missing"
    assert "make peers" in rows["PyTorch eager float32"]["reason"]
    assert rows["gluontune float32"]["samples_per_sec"]["median"] > 0
    assert found["cases"][0]["parameters"] == SHAPES["cifar_resnet20_v1"][1]
    assert found["figures"]["ours_to_mxnet_imperative"]["median"] > 0
    assert found["ours"]["name"] == "gluontune float32"
