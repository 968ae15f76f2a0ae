"""What tests of MXNet's engine on pretended GPUs share."""

from __future__ import annotations

import numpy as np

# Sigmoids: at the kink of a ReLU the last digit of an output decides.
PLAIN = {
    "net": "sigmoid_100", "dataset": "sample", "loader": "resident", "augment": "none", "train_samples": 640,
    "val_samples": 200, "learning_rate": 0.05, "optimizer": "nag", "wd": 1e-3, "epochs": 2,
}  # fmt: skip
TWO = {"devices": "gpu:2,0", "num_devices": 2, "batch_size_per_device": 32}
ONE_GPU = {"devices": "gpu:1", "num_devices": 1, "batch_size_per_device": 64}
ONE = {"devices": "cpu", "num_devices": 1, "batch_size_per_device": 64}
ON_TWO = {"cpu(3)", "cpu(1)"}


def weights(session):
    """Those of each GPU, which must be the same."""
    held = {place: [array.asnumpy() for array in p.list_data()] for place, p in session.work.parameters.items()}
    assert all((each == values[0]).all() for values in held.values() for each in values)
    return {place: values[0] for place, values in held.items()}


def close(first, second, by=1e-5):
    return all(np.abs(first[p] - second[p]).max() <= by * np.abs(second[p]).max() for p in second)
