"""Drawn cases of the bridge's operators: a sample, filled, and as a symbol."""

from __future__ import annotations

import importlib
import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from operator_samples import SAMPLES

import gluontune as gt

pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")
importlib.import_module("gluontune.convert.bridge.operators")
OPERATORS = gt.bridge.OPERATORS
DRAWN = sorted(SAMPLES)
EXAMPLES = int(os.environ.get("GLUONTUNE_OPERATOR_EXAMPLES", "4"))
FIXED = ("index", "integer", "length", "rois", "given")  # inputs that have no gradient


class FromHypothesis:
    def __init__(self, data):
        self._data = data

    def int(self, low, high):
        return self._data.draw(st.integers(low, high))

    def pick(self, values):
        return self._data.draw(st.sampled_from(list(values)))

    def shape(self, least=1, most=4):
        return tuple(self.int(1, 4) for _ in range(self.int(least, most)))


def fill(kind, shape, *rest, rng):
    if kind == "integer":
        return rng.integers(0, rest[0], shape).astype("int32")
    if kind == "index":
        return rng.integers(0, rest[0], shape).astype("float64")
    if kind == "length":
        return rng.integers(1, rest[0] + 1, shape).astype("float64")
    if kind == "boxes":  # corners, the second beyond the first
        low = rng.uniform(0, 0.6, (*shape[:-1], 2))
        return np.concatenate([low, low + rng.uniform(0.05, 0.4, low.shape)], -1)
    if kind == "detections":  # class (-1: none), score, corners
        rows = fill("boxes", (*shape[:-1], 4), rng=rng)
        scores = fill("distinct", (*shape[:-1], 1), rng=rng)
        scores = (scores - scores.min() + 0.1) / (np.ptp(scores) + 0.2)
        return np.concatenate([rng.integers(-1, 2, (*shape[:-1], 1)), scores, rows], -1)
    if kind == "objects":  # class, corners; of each image fewer, of the last none
        rows = np.concatenate([rng.integers(0, 2, (*shape[:-1], 1)), fill("boxes", (*shape[:-1], 4), rng=rng)], -1)
        for place, image in enumerate(rows):
            image[len(image) - place * len(image) // (len(rows) - 1) :] = -1
        return rows
    if kind == "rois":  # image, corners
        rows = fill("boxes", (*shape[:-1], 4), rng=rng) * rest[1]
        return np.concatenate([rng.integers(0, rest[0], (*shape[:-1], 1)), rows], -1)
    if kind == "whole":
        return rng.integers(-2, 3, shape).astype("float64")
    if kind == "positive":
        return rng.uniform(0.2, 3.0, shape)
    if kind == "triangle":
        return np.tril(rng.standard_normal(shape)) * 0.3 + 2 * np.eye(shape[-1])
    if kind == "positive definite":
        rows = rng.standard_normal(shape)
        return rows @ rows.swapaxes(-1, -2) + 3 * np.eye(shape[-1])
    if kind == "above_one":
        return rng.uniform(1.2, 3.0, shape)
    if kind == "unit":
        return rng.uniform(-0.9, 0.9, shape)
    if kind == "distinct":
        count = int(np.prod(shape))
        return (rng.permutation(count) - count / 2 + 0.3).reshape(shape) / 7
    if kind == "given":
        return np.asarray(rest[0], "float64").reshape(shape)
    return rng.standard_normal(shape)


def symbol_of(mx, name, sample):
    """A symbol of the one operator, with all its outputs."""
    names = [f"x{i}" for i in range(len(sample.inputs))]
    attrs = {k: str(len(names)) if v == "?" else str(v) for k, v in sample.attrs.items()}
    attrs = {k: v for k, v in attrs.items() if v != "None" or k in ("axis", "end", "begin", "logit")}
    nodes = [{"op": "null", "name": n, "inputs": []} for n in names]
    nodes.append({"op": name, "name": "op", "attrs": attrs, "inputs": [[i, 0, 0] for i in range(len(names))]})
    document = {
        "nodes": nodes,
        "arg_nodes": list(range(len(names))),
        "heads": [[len(names), 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }
    outputs = mx.sym.load_json(json.dumps(document)).get_internals().list_outputs()
    if OPERATORS[name].returns_tuple(gt.graph.read_symbol(document).nodes[-1].attrs):
        document["heads"] = [[len(names), i, 0] for i in range(len(outputs) - len(names))]
    return document


FEW = settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
               suppress_health_check=list(HealthCheck))  # fmt: skip
