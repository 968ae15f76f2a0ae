"""Two real workers, a server and a scheduler on the loopback: the same weights as one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

WORKER = """
import json, os, sys
import numpy as np
import gluontune as gt
from gluontune.runtime import mxnet

mx = mxnet()

OPTIONS = {"lars": {"wd": 0.1, "trust_coefficient": 0.1}, "muon": {"wd": 0.1}}

def train(kv, on_kvstore, optimizer, sets):
    rank, workers = (kv.rank, kv.num_workers) if kv else (0, 1)
    mx.random.seed(3 + rank)  # the other worker starts elsewhere and must be brought to one net
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(mx.init.Normal(0.5))
    trainer = gt.optim.setup(optimizer, net, learning_rate=0.5, global_batch_size=8, kvstore=kv, schedule="cosine",
                             total_updates=10, update_on_kvstore=on_kvstore, **OPTIONS[optimizer])
    rng = np.random.default_rng(0)
    for number in range(10):
        if number == 6 and sets:
            trainer.set_learning_rate(trainer.learning_rate * 0.5)
        x = rng.normal(size=(8, 3)).astype("float32")
        mine = mx.nd.array(x[rank * 8 // workers : (rank + 1) * 8 // workers])
        with mx.autograd.record():
            loss = ((net(mine) - 1) ** 2).sum(axis=1)
        loss.backward()
        trainer.step()
    if not sets:
        try:
            trainer.set_learning_rate(0.1)
        except ValueError as error:
            assert "parameter servers" in str(error)
        else:
            assert kv is None
    return net.weight.data().asnumpy().ravel().tolist() + net.bias.data().asnumpy().tolist()

if os.environ.get("DMLC_ROLE") == "worker":
    on_kvstore = sys.argv[1] == "True" or None
    print(json.dumps(train(mx.kv.create("dist_sync"), on_kvstore, sys.argv[2], not on_kvstore)), flush=True)
"""


def start(role, port, *arguments):
    env = {
        **os.environ, "OMP_NUM_THREADS": "1", "DMLC_ROLE": role, "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port), "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", WORKER, *arguments]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.process
@pytest.mark.parametrize(("optimizer", "on_kvstore"), [("lars", "None"), ("lars", "True"), ("muon", "None")])
def test_two_workers_train_the_same_net_as_one_process(optimizer, on_kvstore):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cluster = [start(role, port, on_kvstore, optimizer) for role in ("scheduler", "server", "worker", "worker")]
    try:
        scope = {}
        exec(WORKER, scope)
        expected = scope["train"](None, None, optimizer, sets=on_kvstore == "None")
        for worker in cluster[2:]:
            out, err = worker.communicate(timeout=120)
            assert worker.returncode == 0, err
            assert json.loads(out) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    finally:
        for process in cluster:
            process.kill()
            process.communicate()
