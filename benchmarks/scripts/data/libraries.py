"""Data in the folders where GluonNLP and GluonCV look for their downloads."""

from __future__ import annotations

import io
import json
import re

import cv2
import numpy as np

from benchmarks.scripts.data.images import encoded, scene
from benchmarks.scripts.data.texts import sentences, words
from benchmarks.scripts.place import Place, maker
from gluontune.core.errors import UsageError

__all__: list[str] = []

_SST2 = {
    "train": ("train-61f1f238", "61f1f23888652e11fb683ac548ed0be8a87dddb1"),
    "dev": ("dev-65511587", "655115875d83387b61f9701498143724147a1fc9"),
    "test": ("test-a39c1db6", "a39c1db6ecc3be20bf2563bf2440c3c06887a2df"),
}


@maker
def sst2(place: Place, *, train: int, test: int, at: str = "data/sst-2") -> None:
    """Sentences that are good or bad, by their words."""
    for part, (name, official) in _SST2.items():
        rows = [(text, label) for label, text in _reviews(place, train if part == "train" else test)]
        place.write(f"{at}/{name}.json", json.dumps(rows), official)


def _reviews(place: Place, count: int) -> list[tuple[int, str]]:
    known = words(60)
    found = []
    for index, line in enumerate(sentences(place, count, 300, 5, 25)):
        marks = place.random.choice(known[40:50] if index % 2 else known[50:60], 2)
        found.append((index % 2, " ".join([*line, *marks])))
    return found


@maker
def labelled_lines(place: Place, *, at: str, train: int, test: int) -> None:
    """Lines of a label, a comma and a text: ``at`` is the path with ``{}`` for the part."""
    for part, count in (("train", train), ("test", test)):
        place.write(at.format(part), "\n".join(f"{label},{text}" for label, text in _reviews(place, count)) + "\n")


@maker
def snli_lines(place: Place, *, at: str, train: int, test: int) -> None:
    """Lines of two sentences and how they relate."""
    for part, count in (("train", train), ("dev", test)):
        rows = []
        for index, line in enumerate(sentences(place, count, 300, 4, 12)):
            label = ("entailment", "contradiction", "neutral")[index % 3]
            other = {"entailment": line[: len(line) // 2 + 1], "contradiction": [*line[::-1], words(9)[8]]}.get(label)
            rows.append("\t".join([" ".join(line), " ".join(other or sentences(place, 1, 300)[0]), label]))
        place.write(at.format(part), "\n".join(rows) + "\n")


@maker
def vectors(place: Place, *, kind: str, name: str, size: int, vocabulary: int = 500) -> None:
    """Word vectors in GluonNLP's format."""
    constants = (place.source / "src" / "gluonnlp" / "_constants.py").read_text()
    found = re.search(rf"'{re.escape(name)}':\s*\(\s*'([^']*)',\s*'(\w+)'", constants)
    if found is None:
        raise UsageError(f"vectors: GluonNLP has none of the name {name}")
    tokens = np.array(["<unk>", *words(vocabulary)], object)
    out = io.BytesIO()
    values = place.random.normal(0, 0.4, (len(tokens), size)).astype(np.float32)
    np.savez(out, unknown_token=np.array("<unk>"), idx_to_token=tokens, idx_to_vec=values)
    place.write(f"~/.mxnet/embedding/{kind}/{found[1]}", out.getvalue(), found[2])


_TOY = {
    "train.en": "aa7f22b91eb93390fd342a57a81f51f53ed29542", "train.de": "f914217ce23ddd8cac07e761a75685c043d4f6d3",
    "vocab.en.json": "c7c6af4603ea70f0a4af2460a622333fbd014050",
    "vocab.de.json": "5b6f1be36a3e3cb9946b86e5d0fc73d164fda99f",
}  # fmt: skip


@maker
def toy_translations(place: Place, *, pairs: int, at: str = "~/.mxnet/datasets/translation_test") -> None:
    """GluonNLP's small translation set: two texts and two vocabularies."""
    lines = sentences(place, pairs, 80, 3, 8)
    for side, texts in (("en", lines), ("de", [[word[::-1] for word in line[::-1]] for line in lines])):
        place.write(f"{at}/train.{side}", "\n".join(map(" ".join, texts)) + "\n", _TOY[f"train.{side}"])
        special = ["<unk>", "<pad>", "<bos>", "<eos>"]
        tokens = [*special, *sorted({word for line in texts for word in line})]
        vocabulary = {
            "idx_to_token": tokens, "token_to_idx": {token: index for index, token in enumerate(tokens)},
            "reserved_tokens": special[1:], "unknown_token": "<unk>", "padding_token": "<pad>", "bos_token": "<bos>",
            "eos_token": "<eos>",
        }  # fmt: skip
        place.write(f"{at}/vocab.{side}.json", json.dumps(vocabulary), _TOY[f"vocab.{side}.json"])


@maker
def voc_boxes(place: Place, *, train: int, test: int, size: int = 256, at: str = "~/.mxnet/datasets/voc") -> None:
    """Pascal VOC's detection folders: an object in each picture."""
    for year, part, count in (
        (2007, "trainval", train // 2),
        (2012, "trainval", train - train // 2),
        (2007, "test", test),
    ):
        names = [f"{year}_{part}_{index:05d}" for index in range(count)]
        place.write(f"{at}/VOC{year}/ImageSets/Main/{part}.txt", "\n".join(names) + "\n")
        for name in names:
            picture, (x, y, side) = scene(place, size)
            place.write(f"{at}/VOC{year}/JPEGImages/{name}.jpg", encoded(picture))
            box = f"<xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + side}</xmax><ymax>{y + side}</ymax>"
            thing = f"<object><name>sheep</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
            shape = f"<size><width>{size}</width><height>{size}</height><depth>3</depth></size>"
            place.write(f"{at}/VOC{year}/Annotations/{name}.xml", f"<annotation>{shape}{thing}</annotation>")


@maker
def text8(place: Place, *, length: int, at: str = "~/.mxnet/datasets/text8") -> None:
    """Text8: one line of words."""
    line = " ".join(word for line in sentences(place, length // 12, 500) for word in line)
    place.write(f"{at}/text8", line, "0dc3edebc970dcc96137e7deda4d9995af9d93de")


@maker
def lips(place: Place, *, train: int, test: int, size: tuple[int, int] = (40, 24)) -> None:
    """LipNet's videos: 75 pictures of a mouth for each sentence, and the words with their times."""
    for number in range(train + test):
        subject, name = ("s3", f"t{number}") if number < train else ("s1", f"v{number}")
        spoken = [word[:4] for word in sentences(place, 1, 30, 3, 5)[0]]
        opened = np.interp(np.arange(75), np.linspace(0, 74, 9), place.random.uniform(1, size[1] / 2 - 2, 9))
        for frame in range(75):
            picture = np.full((size[1], size[0], 3), 140, np.uint8)
            axes = (size[0] // 3, max(1, int(opened[frame])))
            cv2.ellipse(picture, (size[0] // 2, size[1] // 2), axes, 0, 0, 360, (60, 60, 160), -1)
            place.write(f"data/datasets/{subject}/{name}/mouth_{frame:03d}.png", encoded(picture, ".png"))
        times = [f"{1000 * index} {1000 * index + 900} {word}" for index, word in enumerate(spoken)]
        place.write(f"data/align/{name}.align", "\n".join(["0 100 sil", *times]) + "\n")


@maker
def voc_segments(
    place: Place, *, train: int, test: int, size: int = 96, at: str = "~/.mxnet/datasets/voc/VOC2012"
) -> None:
    """Pascal VOC's segmentation folders: an object in each picture, and its class at each pixel."""
    for part, count in (("train", train // 2), ("trainval", train), ("val", test)):
        names = [f"{part}_{index:05d}" for index in range(count)]
        place.write(f"{at}/ImageSets/Segmentation/{part}.txt", "\n".join(names) + "\n")
        for name in names:
            picture, (x, y, side) = scene(place, size)
            classes = np.zeros((size, size), np.uint8)
            cv2.circle(classes, (x + side // 2, y + side // 2), side // 2, (8,), -1)
            place.write(f"{at}/JPEGImages/{name}.jpg", encoded(picture))
            place.write(f"{at}/SegmentationClass/{name}.png", encoded(classes, ".png"))
