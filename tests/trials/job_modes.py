"""The first losses of jobs in every mode: imperative, hybridized, static; float32, bfloat16; MXNet, PyTorch; a script.

    python tests/trials/job_modes.py FOLDER/*.py --steps 20 --out modes.json

Each job is a ``job.py``. Its losses in a mode are compared with those of imperative MXNet in the same dtype. A mode is

* ``equal``: every loss within 1e-4 (bfloat16: 2e-2) of the imperative one;
* ``rounding``: not further away than ten times what a change of the learning rate by one rounding does;
* ``draws``: equal once dropout is off: a graph draws the masks in another order than the net's own code;
* ``told``: refused with a sentence, or named as a fault of MXNet's with its page, before the first step;
* ``DIFFERS``: anything else, and so is an exception that is no GluontuneError. The command then exits with 1.

``script`` is a plain Gluon loop over the job, under Python; ``captured`` and ``moved`` are the same under ``gluontune
run`` and ``run --backend torch``, compared with it. ``moved*``: no step went to PyTorch, and the reason was printed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gluontune.core.errors import GluontuneError

MODES = {
    "imperative": {}, "nudged": {}, "hybridized": {"hybridize": "hybridized"}, "static": {"hybridize": "static"},
    "torch": {"backend": "torch"}, "torch compiled": {"backend": "torch", "hybridize": "hybridized"},
}  # fmt: skip
ROUNDING = {"float32": 2.0**-23, "bfloat16": 2.0**-8}
BAR = {"float32": 1e-4, "bfloat16": 2e-2}
RATE = 0.01

# A user's own loop; the job's functions stand for what such a script has in itself.
SCRIPT = """
import runpy, sys
import mxnet as mx
from mxnet import autograd, gluon
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
job = runpy.run_path(sys.argv[1])
mx.random.seed(0)
made, (train, _) = job["net"](), job["data"]()
several = isinstance(made, dict)
nets = made if several else {"net": made}
for net in nets.values():
    net.initialize()
trainers = {k: gluon.Trainer(n.collect_params(), "sgd", {"learning_rate": RATE}) for k, n in nets.items()}
loss_of = job["loss"]() if "loss" in job else gluon.loss.SoftmaxCrossEntropyLoss()
step, count = job.get("step"), 0
more = [job["begin"](made, SIZE)] if "begin" in job else []
own = "trainers" in step.__code__.co_varnames[: step.__code__.co_argcount] if step else False
for batch in gluon.data.DataLoader(train, SIZE, last_batch="discard"):
    if own:
        loss = step(made, *batch, trainers=trainers)
    else:
        with autograd.record():
            if step:
                loss = step(made, *batch, *more)
                loss, more = (loss[0], [loss[-1]]) if more else (loss, more)
                loss = loss[0] if isinstance(loss, (list, tuple)) else loss
            else:
                loss = loss_of(made(*batch[:-1]), batch[-1])
        loss.backward()
        trainers["net"].step(SIZE)
    print("loss", repr(float(loss.mean().asnumpy())), flush=True)
    count += 1
    if count == STEPS:
        break
"""


def still() -> None:
    """Make every net of this process without dropout and zoneout."""
    from gluontune.runtime import mxnet

    gluon = mxnet().gluon
    made = gluon.Block.__setattr__

    def no_rate(block: Any, name: str, value: Any) -> None:
        named = name in ("_dropout", "zoneout_states", "zoneout_outputs")
        off = named or (name == "_rate" and isinstance(block, gluon.nn.Dropout))
        made(block, name, 0.0 if off else value)

    gluon.Block.__setattr__ = no_rate


def losses(job: str, mode: str, dtype: str, steps: int, size: int) -> dict[str, Any]:
    """The losses of a mode, and what was said before the first step, in this process."""
    from gluontune.engines import ENGINES
    from gluontune.job.job import load_job
    from gluontune.recipe import Recipe
    from gluontune.recipe.registry import resolve

    rate = RATE * (1 + ROUNDING[dtype]) if mode == "nudged" else RATE
    found: dict[str, Any] = {"mode": mode, "losses": []}
    session = None
    try:
        named = MODES[mode].get("backend") == "torch" or load_job(Recipe(job=job)).dataset is not None
        recipe = Recipe(
            job=job, dtype=dtype, learning_rate=rate, schedule="constant", wd=0.0, optimizer="nag", augment="none",
            batch_size_per_device=size, loader="resident" if named else "gluon", momentum=0.0, **MODES[mode],
        )  # fmt: skip
        session = resolve(ENGINES[recipe.backend].session)(recipe)
        session.build()
        found["notes"] = list(session.news)
        for _ in range(steps):
            found["losses"].append(session.steps(1)["loss"])
    except GluontuneError as error:
        found["told" if not found["losses"] else "late"] = str(error)
    except Exception as error:  # raw: a finding
        found["raw"] = f"{type(error).__name__}: {error}"[:300]
    finally:
        if session is not None:
            session.close()
    return found


def script_losses(
    job: str, words: list[str], steps: int, size: int, folder: Path, rate: float = RATE
) -> dict[str, Any]:
    """The losses that the plain loop prints under a command."""
    path = folder / "plain_loop.py"
    path.write_text(SCRIPT.replace("STEPS", str(steps)).replace("SIZE", str(size)).replace("RATE", repr(rate)))
    ran = subprocess.run([*words, str(path), job], capture_output=True, text=True, check=False, cwd=folder)
    found: dict[str, Any] = {"losses": [float(n) for n in re.findall(r"^loss (\S+)$", ran.stdout, re.M)]}
    found["said"] = [line for line in ran.stderr.splitlines() if line.startswith("gluontune")]
    if ran.returncode:
        found["raw"] = (ran.stderr.strip().splitlines() or ["no word"])[-1][:300]
    return found


def gap(one: list[float], two: list[float]) -> float:
    """The greatest difference relative to the greatest loss; infinite where there are other numbers of them."""
    if len(one) != len(two) or not one:
        return math.inf
    scale = max(abs(v) for v in two) or 1.0
    return max(0.0 if math.isnan(a) and math.isnan(b) else abs(a - b) for a, b in zip(one, two)) / scale


def verdict(row: dict[str, Any], base: dict[str, Any], bar: float, rounding: float) -> str:
    if "told" in row:
        return "told"
    if row.get("raw") or row.get("late"):
        return "DIFFERS: " + str(row.get("raw") or row.get("late"))[:80]
    apart = gap(row["losses"], base["losses"])
    if apart <= bar:
        return f"equal {apart:.0e}"
    return f"rounding {apart:.0e}" if apart <= 10 * rounding else f"DIFFERS {apart:.1e} (rounding {rounding:.0e})"


def one_job(job: str, given: argparse.Namespace) -> dict[str, str]:
    row: dict[str, str] = {}
    for dtype in given.dtypes:
        found, ended = in_a_process(job, dtype, given)
        if set(found) != set(MODES):
            row[f"{dtype} process"] = f"DIFFERS: {ended}"
            continue
        base, nudged = found.pop("imperative"), found.pop("nudged")
        if not base["losses"]:
            row[f"{dtype} imperative"] = verdict(base, base, 0, 0) + f": {base.get('told', '')}"
            continue
        rounding = gap(nudged["losses"], base["losses"])
        calm: dict[str, Any] = {}
        for mode, seen in found.items():
            words = verdict(seen, base, BAR[dtype], rounding)
            faults = [note for note in seen.get("notes", ()) if "mxnet-faults" in note]
            if words.startswith("DIFFERS") and seen["losses"] and faults:
                words = f"told {words}: {'; '.join(faults)}"
            elif words.startswith("DIFFERS") and seen["losses"]:
                calm = calm or in_a_process(job, dtype, given, "--still")[0]
                apart = gap(calm[mode]["losses"], calm["imperative"]["losses"]) if mode in calm else math.inf
                words = f"draws {apart:.0e} without" if apart <= BAR[dtype] else f"{words}, without draws {apart:.1e}"
            row[f"{dtype} {mode}"] = words + (f": {seen['told']}" if "told" in seen else "")
        row[f"{dtype} first and last"] = f"{base['losses'][0]:.4f} {base['losses'][-1]:.4f}"
    if given.scripts:
        row.update(_as_script(job, given))
    return row


def in_a_process(job: str, dtype: str, given: argparse.Namespace, *more: str) -> tuple[dict[str, Any], str]:
    """Each mode's losses, of a process of its own for the job and the dtype, and how it ended."""
    command = [sys.executable, __file__, job, "--child", dtype, "--steps", str(given.steps), "--size", str(given.size)]
    ran = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
    found = {r["mode"]: r for r in map(json.loads, re.findall(r"^MODE (.*)$", ran.stdout, re.M))}
    return found, f"ended with {ran.returncode}: {ran.stderr.strip()[-200:]}"


def _as_script(job: str, given: argparse.Namespace) -> dict[str, str]:
    row, run = {}, [sys.executable, "-m", "gluontune", "run"]
    with tempfile.TemporaryDirectory() as place:
        base = script_losses(job, [sys.executable], given.steps, given.size, Path(place))
        if base.get("raw"):
            return {"script": f"cannot run: {base['raw']}"}
        nudged = RATE * (1 + ROUNDING["float32"])
        other = script_losses(job, [sys.executable], given.steps, given.size, Path(place), nudged)
        rounding = gap(other["losses"], base["losses"])
        for name, more in {"captured": [], "moved": ["--backend", "torch"]}.items():
            out = Path(place, f"{name}.json")
            seen = script_losses(job, [*run, "--out", str(out), *more], given.steps, given.size, Path(place))
            star = "*" if name == "moved" and not any("PyTorch" in s and "step" in s for s in seen["said"]) else ""
            row[name + star] = verdict(seen, base, BAR["float32"], rounding) + f" | {' '.join(seen['said'])[:300]}"
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="JOB.py")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", type=int, default=16, help="samples in a batch")
    parser.add_argument("--dtypes", nargs="+", default=list(BAR), choices=list(BAR))
    parser.add_argument("--scripts", action="store_true", help="the plain loop, too (jobs with data of their own)")
    parser.add_argument("--out", type=Path, help="a JSON document of the table")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--still", action="store_true", help="without dropout, in every mode")
    given = parser.parse_args()
    if given.still:
        still()
    if given.child:
        for mode in MODES:
            print("MODE", json.dumps(losses(given.jobs[0], mode, given.child, given.steps, given.size)), flush=True)
        return 0
    table = {}
    for job in given.jobs:
        name = Path(job).stem
        table[name] = one_job(str(Path(job).resolve()), given)
        for key, value in table[name].items():
            print(f"{name:18} {key:24} {value}", flush=True)
        if given.out:
            given.out.write_text(json.dumps(table, indent=1))
    counts = [v.split()[0].strip(":") for row in table.values() for k, v in row.items() if "first" not in k]
    print(", ".join(f"{counts.count(word)} {word}" for word in sorted(set(counts))))
    return int("DIFFERS" in counts)


if __name__ == "__main__":
    sys.exit(main())
