"""A race on a clock of its own, for the tests of ``gt.compute.hybridize``."""

from __future__ import annotations

from gluontune.compute import choose
from gluontune.compute.race import Race
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn


def small():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Dense(2))
    net.initialize()
    return net, mx.nd.random.uniform(shape=(2, 3, 8, 8))


class Pretended(Race):
    """A race on a clock of its own, where a step takes what ``seconds(trial)`` says, and compiling one second."""

    now, made, noise = 0.0, 0, 0.001

    def prepare(self, trial):
        Pretended.now += 1 + 3 * self.seconds(trial)
        trial._state, trial.compile_s = self.plain, 1.0
        return [self.seconds(trial), self.seconds(trial) * 1.001]

    def time(self, trial):
        Pretended.made += 1
        Pretended.now += self.seconds(trial)
        return self.seconds(trial) * (1 + self.noise * (Pretended.made % 7))


Pretended.clock = staticmethod(lambda: Pretended.now)


def pretend(monkeypatch, seconds):
    monkeypatch.setattr(Pretended, "seconds", staticmethod(seconds), raising=False)
    monkeypatch.setattr(Pretended, "now", 0.0)
    monkeypatch.setattr(Pretended, "made", 0)
    monkeypatch.setattr(choose, "Race", Pretended)
