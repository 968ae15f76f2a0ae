"""bench bridge: rows of real networks, what it calls agreement, resuming, and what it cannot do."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from gluontune.core.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.search.bench import bridge

pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("bridge") / "bridge.json"
    return out, bridge.run(["cifar_resnet20_v1", "cifar_resnet20_v2", "mobilenet1.0_int8"], out=out)


def test_networks_are_converted_and_compared(measured):
    out, found = measured
    first, second, last = found["rows"]
    assert [r["status"] for r in found["rows"]] == ["converted", "converted", "not converted"]
    assert 0 < first["float32"] < 1e-4 and 0 < first["float64"] < 1e-9 and 0 < first["gradients"] < 1e-8
    assert second["gradients"] is not None  # the first of its family too
    assert first["statistics"] < 1e-6 and last["reason"] and last["float32"] is None
    figures = found["figures"]
    assert figures == {
        "names": 3,
        "traced": 3,
        "converted": 2,
        "agree_float32": 2,
        "agree_float64": 2,
        "gradients": 2,
        "agree_gradients": 2,
    }
    assert "was quantized by MXNet" in last["reason"] and not bridge.holds(figures)
    assert json.loads(out.read_text()) == json.loads(json.dumps(found))


def test_resuming_keeps_what_is_converted(measured, tmp_path):
    found = json.loads(measured[0].read_text())
    found["rows"][1].update(status="failed", reason="killed")
    out = tmp_path / "bridge.json"
    out.write_text(json.dumps(found))
    asked = []

    class Pretended:
        def __init__(self, limit):
            pass

        def names(self):
            return ["cifar_resnet20_v1", "cifar_resnet20_v2", "mobilenet1.0_int8"]

        def row(self, name, gradients):
            asked.append((name, gradients))
            bad = {"status": "converted", "reason": "", "float32": 2e-4, "float64": 0.0, "gradients": 1e-3}
            return {"name": name, "family": bridge.family(name), "shape": [1], "statistics": 0.0, **bad}

        def close(self):
            pass

    again = bridge.run(None, out=out, resume=True, judging=Pretended)
    assert asked == [("cifar_resnet20_v2", True), ("mobilenet1.0_int8", True)]
    assert again["figures"]["agree_float32"] == again["figures"]["agree_gradients"] == 1
    assert not bridge.holds(again["figures"])
    text = io.StringIO()
    bridge.show(again, Console(file=text, width=200))
    assert "3 of 3 networks that trace" in text.getvalue() and "gradients within 1e-08: 1 of 3" in text.getvalue()


def test_what_cannot_be_measured_is_told(measured, tmp_path):
    class Knows(bridge.JudgeProcess):
        def names(self):
            return ["cifar_resnet20_v1"]

    with pytest.raises(UnknownNameError, match="cifar_resnet20_v1"):
        bridge.run(["cifar_resnet20"], judging=Knows)
    with pytest.raises(UsageError, match="family, all or none"):
        bridge.run(gradients="some")
    with pytest.raises(UsageError, match="--out"):
        bridge.run(resume=True)
    (tmp_path / "old.json").write_text('{"schema_version": 0, "rows": []}')
    with pytest.raises(GluontuneError, match=r"old\.json"):
        bridge.run(out=tmp_path / "old.json", resume=True)
