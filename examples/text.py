"""A plain Gluon text classifier, without gluontune: which package of the standard library does a docstring come from?

python examples/text.py [--epochs 6]
"""

import argparse
import ast
import pathlib
import random
import re
import sysconfig

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

PACKAGES = ["email", "asyncio", "unittest", "multiprocessing", "logging", "xml"]
LENGTH, BATCH = 40, 32


def docstrings(package):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted((pathlib.Path(sysconfig.get_path("stdlib")) / package).rglob("*.py")):
        if "test" not in path.parts:
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            yield from filter(None, (ast.get_docstring(node) for node in nodes if isinstance(node, kinds)))


class TextCNN(nn.Block):
    """Convolutions of three widths over word vectors, the largest answer of each (Kim, 2014)."""

    def __init__(self, words, classes, size=64, widths=(2, 3, 4)):
        super().__init__()
        with self.name_scope():
            self.embedding = nn.Embedding(words, size)
            self.convolutions = nn.Sequential()
            for width in widths:
                self.convolutions.add(nn.Conv1D(size, width, activation="relu"))
            self.dropout = nn.Dropout(0.3)
            self.output = nn.Dense(classes)

    def forward(self, tokens):
        vectors = self.embedding(tokens).transpose((0, 2, 1))
        found = [convolution(vectors).max(axis=2) for convolution in self.convolutions]
        return self.output(self.dropout(mx.nd.concat(*found, dim=1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    mx.random.seed(0)
    random.seed(0)
    texts = [(text, label) for label, package in enumerate(PACKAGES) for text in docstrings(package)]
    random.shuffle(texts)
    words = [re.findall(r"[a-z_]+", text.lower())[:LENGTH] for text, _ in texts]
    numbers = {"": 0}
    rows = [[numbers.setdefault(word, len(numbers)) for word in row] for row in words]
    tokens = mx.nd.array([row + [0] * (LENGTH - len(row)) for row in rows])
    labels = mx.nd.array([label for _, label in texts])
    held_out = len(texts) // 5
    train = gluon.data.ArrayDataset(tokens[held_out:], labels[held_out:])
    test = gluon.data.ArrayDataset(tokens[:held_out], labels[:held_out])
    net = TextCNN(len(numbers), len(PACKAGES))
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for epoch in range(options.epochs):
        total = 0.0
        for words, label in gluon.data.DataLoader(train, BATCH, shuffle=True):
            with autograd.record():
                loss = loss_of(net(words), label)
            loss.backward()
            trainer.step(len(label))
            total += loss.mean().asscalar()
        right = mx.metric.Accuracy()
        for words, label in gluon.data.DataLoader(test, BATCH):
            right.update(label, net(words))
        print(f"epoch {epoch + 1}: loss {total * BATCH / len(train):.3f}, accuracy {right.get()[1]:.3f}")


if __name__ == "__main__":
    main()
