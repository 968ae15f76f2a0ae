"""The trained net back from its checkpoints, and callbacks that see a run."""

from __future__ import annotations

import numpy as np
import pytest

import gluontune as gt
from gluontune.convert.graph.params import set_parameters
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.job import checkpoint
from gluontune.job.trained import recipe_of_source, trained
from gluontune.methods.cards import METHODS
from gluontune.runtime import mxnet

FAST = gt.Recipe(
    net="small_cnn", loader="resident", train_samples=512, val_samples=200, batch_size_per_device=32,
    rewrites=("pool-to-mean",), hybridize="static", epochs=2,
)  # fmt: skip

JOB = """
import numpy as np
from mxnet import gluon, nd

class Pairs(gluon.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        x = np.random.RandomState(i).rand(3).astype("float32")
        return x, np.float32(i % 2)

def net():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, activation="relu"), gluon.nn.Dense(2))
    return net

def data():
    return Pairs(), Pairs()
"""


def test_the_net_that_is_loaded_scores_what_the_run_said(tmp_path, reused):
    result = gt.train.run(FAST, checkpoints=gt.train.Checkpoints(tmp_path), site=reused.site)
    assert result.ok
    net, nd = gt.train.load(tmp_path, pixels=True), mxnet().nd
    from gluontune.loading.loaders import seeded_subset

    data = gt.datasets.open("sample")
    split = seeded_subset(data.test, FAST.val_samples, FAST.seed)
    with gt.loading.build("resident", split, batch_size=50, image_shape=data.image_shape, last_batch="keep") as of:
        hits = [(net(nd.array(images, dtype="uint8")).asnumpy().argmax(1) == labels) for images, labels in of.epoch(0)]
    assert np.mean(np.concatenate(hits)) == pytest.approx(result.val_accuracy[-1])


def test_a_jobs_own_net_comes_back(tmp_path, reused):
    (tmp_path / "job.py").write_text(JOB)
    recipe = gt.Recipe(job=str(tmp_path / "job.py"), batch_size_per_device=16, epochs=1)
    result = gt.train.run(recipe, checkpoints=gt.train.Checkpoints(tmp_path / "kept"), site=reused.site)
    assert result.ok, result.error
    net = gt.train.load(tmp_path / "kept")
    assert net(mxnet().nd.ones((5, 3))).shape == (5, 2)
    with pytest.raises(UsageError, match="pixels=True"):
        gt.train.load(tmp_path / "kept", pixels=True)
    (tmp_path / "job.py").write_text(JOB.replace("Dense(4", "Dense(5"))
    with pytest.raises(GluontuneError, match="of another net"):
        gt.train.load(tmp_path / "kept")


def test_nothing_to_load(tmp_path):
    with pytest.raises(GluontuneError, match="no checkpoint in this folder"):
        gt.train.load(tmp_path)


class Watcher(gt.train.Callback):
    def __init__(self):
        self.seen = []

    def run_start(self, now):
        self.seen.append((now.event, now.total_steps))

    def steps_end(self, now):
        assert now.samples_per_sec > 0
        assert np.isfinite(now.loss)

    def epoch_end(self, now):
        self.seen.append((now.event, now.epoch, round(now.val_value, 3)))

    def run_end(self, now):
        self.seen.append((now.event, now.steps))


def test_callbacks_see_events_in_their_order(reused):
    watcher, names = Watcher(), []
    result = gt.train.run(FAST, callbacks=[watcher, lambda now: names.append(now.event)], site=reused.site)
    first, second = (round(value, 3) for value in result.val_accuracy)
    assert watcher.seen == [("run_start", 32), ("epoch_end", 1, first), ("epoch_end", 2, second), ("run_end", 32)]
    assert names[0] == "run_start"
    assert names[1] == "steps_end"
    assert names[-2:] == ["epoch_end", "run_end"]


def test_a_callback_ends_the_run_which_is_validated_once_more(tmp_path, reused):
    class Enough(gt.train.Callback):
        def epoch_end(self, now):
            now.stop("one epoch")

    result = gt.train.run(FAST, callbacks=[Enough()], checkpoints=gt.train.Checkpoints(tmp_path), site=reused.site)
    assert (result.status, result.steps, len(result.val_accuracy)) == ("ok", 16, 1)
    assert any("stopped by Enough: one epoch at step 16" in note for note in result.notes)
    gt.train.load(tmp_path)


def test_what_a_callback_raises_comes_out_and_what_is_none_is_refused(reused):
    def wrong(now):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        gt.train.run(FAST, callbacks=[wrong], site=reused.site)
    with pytest.raises(UsageError, match=r"inherit from gt\.train\.Callback"):
        gt.train.run(FAST, callbacks=[3])


@pytest.mark.parametrize("method", [n for n in METHODS.names() if METHODS[n].kind == "weights"])
def test_whatever_reads_a_checkpoint_has_the_average_that_was_validated(tmp_path, reused, method):
    """Not the raw weights: they are another net."""
    kept = tmp_path / "kept"
    recipe = FAST.override(
        methods={method: True}, train_samples=192, val_samples=40, batch_size_per_device=32, epochs=1
    )
    assert gt.train.run(recipe, checkpoints=gt.train.Checkpoints(kept), site=reused.site).ok
    _, arrays = checkpoint.read(checkpoint.files(kept)[0])
    x = mxnet().nd.random.normal(shape=(4, 1, 28, 28))
    loaded = gt.train.load(kept)
    exported = trained(recipe_of_source(kept, gt.Recipe()), kept).net
    np.testing.assert_array_equal(loaded(x).asnumpy(), exported(x).asnumpy())
    raw = {name.partition("/")[2]: a for name, a in arrays.items() if name.startswith("parameter/")}
    set_parameters(loaded, raw)
    assert np.abs(loaded(x).asnumpy() - exported(x).asnumpy()).max() > 1e-3  # six updates: lookahead's k is 5


def test_parameters_of_a_net_of_an_exported_symbol_are_set(tmp_path):
    """Its shapes are not known before: they were told as "the net's ()"."""
    mx = mxnet()
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(4, 3), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Dense(2))
    net.initialize()
    net.hybridize()
    x = mx.nd.ones((2, 3, 8, 8))
    wanted = net(x).asnumpy()
    net.export(str(tmp_path / "net"))
    read = mx.gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"])
    set_parameters(read, {name: p.data().asnumpy() for name, p in net.collect_params().items()})
    np.testing.assert_allclose(read(x).asnumpy(), wanted, rtol=1e-6)
