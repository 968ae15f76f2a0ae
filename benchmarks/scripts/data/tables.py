"""Tables: house prices, ratings, clicks, wing noise."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.scripts.data.images import archive
from benchmarks.scripts.place import Place, d2l_file, maker

__all__: list[str] = []


@maker
def airfoil(place: Place, *, rows: int = 1503) -> None:
    """NASA's table of wing noise: five inputs and the sound pressure."""
    inputs = place.random.normal(0, 1, (rows, 5))
    sound = inputs @ np.arange(1, 6) + place.random.normal(0, 1, rows)
    table = np.concatenate([inputs, sound[:, None]], 1)
    d2l_file(place, "airfoil", "\n".join("\t".join(f"{v:.4f}" for v in row) for row in table) + "\n")


def _houses(place: Place, rows: int, first: int, priced: bool) -> str:
    random = place.random
    numbers = {
        "MSSubClass": random.choice([20, 60, 120], rows), "LotFrontage": random.integers(20, 120, rows),
        "LotArea": random.integers(2000, 20000, rows), "OverallQual": random.integers(1, 11, rows),
        "GrLivArea": random.integers(500, 4000, rows), "YearBuilt": random.integers(1900, 2010, rows),
    }  # fmt: skip
    texts = {
        "MSZoning": random.choice(["RL", "RM", "FV"], rows), "Street": random.choice(["Pave", "Grvl"], rows),
        "Neighborhood": random.choice(["NAmes", "Gilbert", "StoneBr", "OldTown"], rows),
        "SaleType": random.choice(["WD", "New", "COD"], rows),
        "SaleCondition": random.choice(["Normal", "Partial"], rows),
    }  # fmt: skip
    columns = {"Id": np.arange(first, first + rows), **numbers, **texts}
    if priced:
        price = 20 * numbers["GrLivArea"] + 9000 * numbers["OverallQual"] + random.normal(0, 5000, rows) + 30000
        columns["SalePrice"] = price.astype(int)
    cells = {name: [str(v) for v in values] for name, values in columns.items()}
    for index in random.integers(0, rows, rows // 10):
        cells["LotFrontage"][index] = "NA"
    return "\n".join([",".join(cells), *(",".join(row) for row in zip(*cells.values()))]) + "\n"


@maker
def house_prices(place: Place, *, train: int = 1460, test: int = 500) -> None:
    """Kaggle's house prices, with fewer columns."""
    d2l_file(place, "kaggle_house_train", _houses(place, train, 1, True))
    d2l_file(place, "kaggle_house_test", _houses(place, test, train + 1, False))


def ratings(place: Place, users: int, items: int, count: int) -> list[tuple[int, int, int, int]]:
    """User, item, rating from 1 to 5, and time: each user and item has a few hidden tastes; no pair comes twice."""
    taste, kind = place.random.normal(0, 1, (users, 3)), place.random.normal(0, 1, (items, 3))
    pairs = place.random.choice(users * items, count, replace=False)
    rows = []
    for time, pair in enumerate(pairs):
        user, item = divmod(int(pair), items)
        score = float(taste[user] @ kind[item]) + place.random.normal(0, 0.3)
        rows.append((user + 1, item + 1, int(np.clip(round(3 + score), 1, 5)), 880000000 + time))
    return rows


@maker
def clicks(place: Place, *, train: int = 8192, test: int = 2048, fields: int = 34) -> None:
    """Click-through data: a label and fields of categories."""
    files = []
    weight = place.random.normal(0, 1, (fields, 20))
    for part, count in (("train", train), ("test", test)):
        values = place.random.integers(0, 20, (count, fields))
        score = sum(weight[field, values[:, field]] for field in range(fields))
        label = (score + place.random.normal(0, 1, count) > 0).astype(int)
        lines = ("\t".join([str(y), *(f"f{f}v{v}" for f, v in enumerate(row))]) for y, row in zip(label, values))
        files.append((f"ctr/{part}.csv", "\n".join(lines).encode()))
    d2l_file(place, "ctr", archive(files, "zip"))


@maker
def movielens_folder(place: Place, *, users: int, items: int, count: int, at: str = "ml-100k") -> None:
    """MovieLens-100K unpacked: its first split, all ratings, the films' names, and an empty archive."""
    rows = ratings(place, users, items, count)
    rows[0] = (users, items, *rows[0][2:])
    lines = ["\t".join(map(str, row)) for row in rows]
    for name, some in (("u.data", lines), ("u1.base", lines[: count * 4 // 5]), ("u1.test", lines[count * 4 // 5 :])):
        place.write(f"{at}/{name}", "\n".join(some) + "\n")
    films = (
        f"{number}|Film {number} (1995)|01-Jan-1995||http://film|" + "|".join("0" * 19)
        for number in range(1, items + 1)
    )
    place.write(f"{at}/u.item", "\n".join(films) + "\n")
    place.write(f"{at}.zip", archive([], "zip"))


@maker
def series(place: Place, *, name: str, count: int, length: int, prediction: int, freq: str = "H") -> None:
    """GluonTS's folder of a data set: hourly series with a day's rhythm and a trend of their own."""
    at = f"~/.gluonts/datasets/{name}"
    hours, lines = np.arange(length), []
    for number in range(count):
        level, swing, phase, trend = place.random.uniform((20, 2, 0, 0), (60, 15, 24, 0.02))
        noise = place.random.normal(0, 1, length)
        values = level + swing * np.sin((hours + phase) * 2 * np.pi / 24) + trend * hours + noise
        lines.append((number, [round(float(value), 3) for value in values]))
    for part, kept in (("train", length - prediction), ("test", length)):
        rows = (
            json.dumps({"start": "2020-01-01 00:00:00", "target": values[:kept], "item_id": number})
            for number, values in lines
        )
        place.write(f"{at}/{part}/data.json", "\n".join(rows) + "\n")
    place.write(f"{at}/metadata.json", json.dumps({"freq": freq, "prediction_length": prediction}))
