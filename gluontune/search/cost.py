"""Prices and energy: dollars and joules to an accuracy. No price is built in, because prices change."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gluontune.core.errors import GluontuneError, UsageError, nearest
from gluontune.core.reading import MOST_YAML, parse_yaml, read_text

FIELDS = ("machine", "usd_per_hour", "date", "source")
EXAMPLE = "prices: [{machine: my-server, usd_per_hour: 0.34, date: 2026-01-31, source: 'https://…'}]"


def read_price(path: str | Path, machine: str | None = None) -> dict[str, Any]:
    """One machine's price, ``{"machine", "usd_per_hour", "date", "source"}``, from a table in YAML.

    Each price needs its date (``yyyy-mm-dd``) and its source, so that a reader can judge it.

    Args:
        path: the table. machine: of the entry; may be omitted for a table of one.

    Raises:
        GluontuneError: the file cannot be read.
        UsageError: a field is missing or wrong, or the machine is not in the table; names the entry.

    >>> import pathlib, tempfile
    >>> table = pathlib.Path(tempfile.mkdtemp()) / "prices.yaml"
    >>> _ = table.write_text("prices: [{machine: m, usd_per_hour: 0.5, date: 2026-01-31, source: list price}]")
    >>> read_price(table)["usd_per_hour"]
    0.5
    """
    try:
        text = read_text(path, MOST_YAML)
    except (OSError, UnicodeDecodeError) as error:
        raise GluontuneError(f"{path}: cannot read the price table: {error}") from error
    try:
        document = parse_yaml(text)
    except ValueError as error:
        raise UsageError(f"{path}: not valid YAML: {error}") from error
    entries = document.get("prices") if isinstance(document, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path}: a price table has a list of prices, such as\n{EXAMPLE}")
    checked = [_checked(entry, f"{path}: price {number}") for number, entry in enumerate(entries, 1)]
    names = [entry["machine"] for entry in checked]
    if machine is None and len(checked) > 1:
        raise UsageError(f"{path}: it has {len(checked)} machines: choose one with --machine ({', '.join(names)})")
    if machine is None or machine in names:
        return checked[0 if machine is None else names.index(machine)]
    close = nearest(machine, names)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(f"{path}: no machine {machine!r} in it: {hint}Known: {', '.join(names)}")


def _checked(entry: Any, where: str) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where}: not a mapping of {', '.join(FIELDS)}; write it as\n{EXAMPLE}")
    if missing := [name for name in FIELDS if entry.get(name) in (None, "")]:
        named = f" ({entry['machine']})" if entry.get("machine") else ""
        what = f"fields {', '.join(missing)} are" if len(missing) > 1 else f"field {missing[0]} is"
        raise UsageError(f"{where}{named}: the {what} missing; write it as\n{EXAMPLE}")
    price = entry["usd_per_hour"]
    if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 < price < math.inf:
        raise UsageError(f"{where}: usd_per_hour={price!r}: give a number above 0")
    date = str(entry["date"])
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        raise UsageError(f"{where}: date={date!r}: write the day of the price as yyyy-mm-dd") from None
    machine, source = str(entry["machine"]), str(entry["source"])
    return {"machine": machine, "usd_per_hour": float(price), "date": date, "source": source}


def usd(price: Mapping[str, Any] | None, seconds: float | None) -> float | None:
    """The cost of a machine for so many seconds; None if the price or the time is unknown.

    >>> usd({"usd_per_hour": 0.36}, 100.0)
    0.01
    """
    return None if price is None or seconds is None else price["usd_per_hour"] * seconds / 3600


def gpu_joules(utilization: Mapping[str, Any], until_s: float) -> float | None:
    """Joules of all sampled GPUs from the start of a RunResult's series to ``until_s``; None without readings.

    >>> gpu_joules({"t_s": [0.0, 1.0, 2.0], "gpu_power_w": {"0": [100.0, 100.0, 200.0]}}, 2.0)
    250.0
    """
    power = utilization.get("gpu_power_w")
    if not isinstance(power, Mapping) or not power:
        return None
    total, read = 0.0, False
    for watts in power.values():
        points = [(t, w) for t, w in zip(utilization["t_s"], watts) if w is not None and t <= until_s]
        read = read or len(points) > 1
        total += sum((t1 - t0) * (w0 + w1) / 2 for (t0, w0), (t1, w1) in zip(points, points[1:]))
    return total if read else None


class PackageEnergy:
    """Energy of the machine's CPU packages, by Linux's powercap counters (RAPL).

    :meth:`joules` is None where only root can read them, and on virtual machines, which have none.

    >>> PackageEnergy("/nonexistent").joules() is None
    True
    """

    def __init__(self, root: str | Path = "/sys/class/powercap"):
        packages = sorted(Path(root).glob("intel-rapl:[0-9]*"))
        self._zones = [zone for zone in packages if zone.name.count(":") == 1]
        self._last = self._read()
        self._total = 0.0

    def _read(self) -> list[tuple[int, int]] | None:
        """Micro-joules and range of each package's counter, or None."""
        found = []
        with contextlib.suppress(OSError, ValueError):
            for zone in self._zones:
                values = [int((zone / name).read_text()) for name in ("energy_uj", "max_energy_range_uj")]
                found.append((values[0], values[1]))
        return found if found and len(found) == len(self._zones) else None

    def joules(self) -> float | None:
        """Joules since the object was created; call it at least once a minute, because the counters wrap."""
        now = self._read()
        if now is None or self._last is None:
            return None
        for (before, _), (after, span) in zip(self._last, now):
            self._total += ((after - before) if after >= before else (after - before + span)) / 1e6
        self._last = now
        return self._total
