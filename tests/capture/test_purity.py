"""Which Python functions may be computed once."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest

from gluontune.capture.purity import branches, why_impure

SIZE, STATE, ARRAY = 28, {"size": 28}, np.ones(3)


def scaled(x, by=255.0):
    return x.astype(np.float32) / by


def through(x, y):
    return scaled(x).reshape((SIZE, SIZE)), y


class Holder:
    count = 0

    def method(self, x):
        return x / 2

    def counting(self, x):
        self.count += 1
        return x


def counted(x):
    global SEEN
    SEEN = x
    return x


def outer():
    n = 0

    def inner(x):
        nonlocal n
        n += 1
        return x + n

    return inner


@pytest.mark.parametrize(
    "function",
    [scaled, through, lambda x, y: (x, y), Holder().method, functools.partial(scaled, by=2.0), lambda x: np.mean(x)],
)
def test_functions_of_their_arguments_are_pure(function):
    assert why_impure(function) == ""


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * random.random(), "random"),
        (lambda x: x[:, ::-1] if np.random.rand() > 0.5 else x, "rand"),
        (lambda x: [np.permutation(i) for i in x], "permutation"),
        (lambda x: x * STATE["size"], "STATE"),
        (lambda x: x * ARRAY, "ARRAY"),
        (lambda x: print(x), "print"),
        (lambda x: input(x), "input"),
        (counted, "SEEN"),
        (outer(), "n"),
        (Holder().counting, "count"),
        (functools.partial(scaled, by=[2.0]), "bound"),
        (lambda x: undefined_name(x), "undefined_name"),  # noqa: F821
        (len, "code"),
        (lambda x: counted(x), "SEEN"),
    ],
)
def test_what_draws_writes_or_reads_what_changes_is_not(function, reason):
    assert reason in why_impure(function)


def test_decisions_are_seen():
    assert not branches(through) and branches(lambda x: x if x > 0 else -x) and branches(lambda x: [i + 1 for i in x])
