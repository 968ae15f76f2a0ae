"""Texts of made-up words that follow each other by chance: for language models, translators, trees."""

from __future__ import annotations

import numpy as np

from benchmarks.scripts.data.images import archive
from benchmarks.scripts.place import Place, d2l_file, maker

__all__ = ["sentences", "words"]


def words(count: int) -> list[str]:
    """Distinct made-up words."""
    random = np.random.default_rng(7)
    found: dict[str, None] = {}
    while len(found) < count:
        syllables = random.integers(1, 4)
        found[
            "".join(random.choice(list("bdfgklmnprstv")) + random.choice(list("aeiou")) for _ in range(syllables))
        ] = None
    return list(found)


def sentences(place: Place, count: int, vocabulary: int = 500, shortest: int = 4, longest: int = 20) -> list[list[str]]:
    """Sentences in which a word says much about the next, with Zipf's frequencies."""
    known = words(vocabulary)
    frequencies = 1 / np.arange(1, vocabulary + 1)
    frequencies /= frequencies.sum()
    followers = np.random.default_rng(9).choice(vocabulary, (vocabulary, 3), p=frequencies)
    found = []
    for _ in range(count):
        word = place.random.choice(vocabulary, p=frequencies)
        line = []
        for _ in range(place.random.integers(shortest, longest + 1)):
            line.append(known[word])
            follow = place.random.random() < 0.6
            word = place.random.choice(followers[word]) if follow else place.random.choice(vocabulary, p=frequencies)
        found.append(line)
    return found


@maker
def time_machine(place: Place, *, lines: int = 3000) -> None:
    """A novel, line by line."""
    d2l_file(place, "time_machine", "\n".join(" ".join(line) for line in sentences(place, lines, 400)) + "\n")


@maker
def translations(place: Place, *, pairs: int = 1000) -> None:
    """English and French sentences beside each other: a word has its translation."""
    rows = []
    for line in sentences(place, pairs, 80, 1, 4):
        rows.append(" ".join(line) + " .\t" + " ".join(word[::-1] for word in line) + " .")
    d2l_file(place, "fra-eng", archive([("fra-eng/fra.txt", "\n".join(rows).encode())], "zip"))


@maker
def ptb_zip(place: Place, *, lines: int = 3000) -> None:
    """Penn Treebank's training text."""
    text = "\n".join(" ".join(line) for line in sentences(place, lines, 400))
    d2l_file(place, "ptb", archive([("ptb/ptb.train.txt", text.encode())], "zip"))


@maker
def wikitext_zip(place: Place, *, lines: int = 500) -> None:
    """WikiText-2's training tokens: paragraphs of several sentences."""
    rows = []
    for _ in range(lines):
        rows.append(" " + " . ".join(" ".join(line) for line in sentences(place, 4, 300)) + " .")
    d2l_file(place, "wikitext-2", archive([("wikitext-2/wiki.train.tokens", "\n".join(rows).encode())], "zip"))


@maker
def imdb(place: Place, *, train: int = 800, test: int = 200) -> None:
    """Reviews: some words are in good ones, some in bad ones."""
    files = []
    good, bad = words(60)[40:50], words(60)[50:60]
    for part, count in (("train", train), ("test", test)):
        for index, line in enumerate(sentences(place, count, 300, 30, 120)):
            kind = index % 2
            line = [*line, *place.random.choice(good if kind else bad, 8)]
            place.random.shuffle(line)
            files.append((f"aclImdb/{part}/{'pos' if kind else 'neg'}/{index}.txt", " ".join(line).encode()))
    d2l_file(place, "aclImdb", archive(files, "tar.gz"))


@maker
def glove(place: Place, *, name: str, file: str, size: int, vocabulary: int = 500) -> None:
    """Word vectors."""
    rows = [f"{word} " + " ".join(f"{v:.4f}" for v in place.random.normal(0, 0.4, size)) for word in words(vocabulary)]
    d2l_file(place, name, archive([(f"{file}/vec.txt", "\n".join(rows).encode())], "zip"))


@maker
def snli(place: Place, *, train: int = 4000, test: int = 500) -> None:
    """Pairs of sentences: the second repeats the first, turns it round, or is another."""
    files = []
    for part, count in (("train", train), ("test", test)):
        rows = ["gold_label\tsentence1_binary_parse\tsentence2_binary_parse"]
        for index, line in enumerate(sentences(place, count, 300)):
            label = ("entailment", "contradiction", "neutral")[index % 3]
            other = {"entailment": line[: len(line) // 2 + 1], "contradiction": [*line[::-1], words(9)[8]]}.get(label)
            second = other or sentences(place, 1, 300)[0]
            rows.append(f"{label}\t( {' '.join(line)} )\t( {' '.join(second)} )")
        files.append((f"snli_1.0/snli_1.0_{part}.txt", "\n".join(rows).encode()))
    d2l_file(place, "SNLI", archive(files, "zip"))


_WIKITEXT = {
    "train": "863f29c46ef9d167fff4940ec821195882fe29d1", "valid": "0418625c8b4da6e4b5c7a0b9e78d4ae8f7ee5422",
    "test": "c7b8ce0aa086fb34dab808c5c49224211eb2b172",
}  # fmt: skip


@maker
def wikitext(place: Place, *, lines: int, at: str = "data", vocabulary: int = 500) -> None:
    """WikiText-2's three files of tokens."""
    for part, official in _WIKITEXT.items():
        count = lines if part == "train" else max(lines // 10, 60)
        text = "\n".join(" ".join(line) for line in sentences(place, count, vocabulary)) + "\n"
        place.write(f"{at}/wiki.{part}.tokens", text, official)


@maker
def sick(place: Place, *, at: str, train: int, test: int, glove: str = "data/glove/glove.840B.300d.txt") -> None:
    """Pairs of sentences with trees and a similarity, and word vectors."""
    for part, count in (("train", train), ("dev", test), ("test", test)):
        texts: dict[str, list[str]] = {"a": [], "b": []}
        trees: dict[str, list[str]] = {"a": [], "b": []}
        scores = []
        for line in sentences(place, count, 200, 4, 10):
            kept = int(place.random.integers(2, len(line) + 1))
            other = [*line[:kept], *sentences(place, 1, 200, 1, 3)[0]]
            scores.append(f"{1 + 4 * kept / len(line):.2f}")
            for side, tokens in (("a", line), ("b", other)):
                texts[side].append(" ".join(tokens))
                trees[side].append(" ".join(_tree(place, len(tokens))))
        for side in "ab":
            place.write(f"{at}/{part}/{side}.toks", "\n".join(texts[side]) + "\n")
            place.write(f"{at}/{part}/{side}.parents", "\n".join(trees[side]) + "\n")
        place.write(f"{at}/{part}/sim.txt", "\n".join(scores) + "\n")
    rows = [f"{word} " + " ".join(f"{v:.4f}" for v in place.random.normal(0, 0.4, 300)) for word in words(200)]
    place.write(glove, "\n".join(rows) + "\n")


def _tree(place: Place, nodes: int) -> list[str]:
    """The parent of each node from 1 on; the root's is 0."""
    root = int(place.random.integers(1, nodes + 1))
    done, parents = [root], {root: 0}
    for node in place.random.permutation([node for node in range(1, nodes + 1) if node != root]):
        parents[int(node)] = int(place.random.choice(done))
        done.append(int(node))
    return [str(parents[node]) for node in range(1, nodes + 1)]
