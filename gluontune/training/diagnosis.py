"""Diagnosis of a job or an unchanged script: slow paths, whether its net compiles, where a step's time goes."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from gluontune import compute, runtime
from gluontune.capture.script import ENVIRONMENT, Program
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.engines import ENGINES
from gluontune.job.data import make_feed
from gluontune.job.job import give_values, load_job
from gluontune.parallel.kvstore import contexts
from gluontune.recipe import Recipe
from gluontune.recipe.registry import resolve
from gluontune.runtime import mxnet, pytorch
from gluontune.training.group import Group, RunFailed
from gluontune.training.starting import ScriptRun, ScriptSite

_RECIPE = "GLUONTUNE_EXAMINED_RECIPE"
_PHASE_STEPS = 26  # one step in 25 is cut into phases
_LONGEST_S = 30.0  # of the steps for the phases, at most
_FASTER_INPUT = "gluontune size, --loader resident or threaded"
_FASTER_GLUON_INPUT = (
    "--loader resident where samples are the same each time, else --num-workers 2; or name the images in data(), "
    "'folder:PATH' or 'records:PATH' (gluontune pack), which the faster loaders read, too"
)
_INPUT_PCT = 30  # of the step in waiting for data, from which on loading is the bottleneck


@dataclass
class Examination:
    """The result of :func:`examine`.

    Args:
        sentence: the most important finding.
        findings: ``{"id", "severity": "ok|info|warning|error", "message", "evidence", "fix"}`` each.
        profile: of ``gt.compute.profile``, as plain values.
        hybridize: of ``gt.compute.check_hybridizable``, or None if the job has no net.
        phases_pct: shares of the step's phases, or {}.
    """

    sentence: str = ""
    findings: list[dict[str, str]] = field(default_factory=list)
    profile: dict[str, Any] = field(default_factory=dict)
    hybridize: dict[str, Any] | None = None
    phases_pct: dict[str, float] = field(default_factory=dict)

    def add(self, id: str, severity: str, message: str, evidence: str = "", fix: str = "") -> None:
        finding = {"id": id, "severity": severity, "message": message, "evidence": evidence, "fix": fix}
        self.findings.append(finding)


def examine(
    recipe: Recipe, *, step: str | None = None, time_limit: float = 300.0, say: Callable[[str], None] | None = None
) -> Examination:
    """Profile the training step of a job; the result names the slowest path and its cure in one sentence.

    Args:
        recipe: the job (or net and data set), with the mode and type to examine.
        step: name of a function in ``recipe.job`` without arguments that returns a callable for one whole step, which
            is then profiled; by default gluontune's step of the recipe is profiled, and the net is checked, too.
        time_limit: seconds of one part. say: called with lines of progress.

    Example::

        found = examine(gt.Recipe(net="cifar_resnet20_v1", hybridize="static"))
        print(found.sentence)
    """
    tell = say or (lambda line: None)
    found = Examination()
    tell("profiling the step")
    try:  # in another process, because a job may end its process
        found_profile = _profile(recipe, step, time_limit)
    except GluontuneError as error:
        if step is not None or "is more than the" not in str(error):
            raise
        recipe = _smaller_batch(recipe, found)
        found_profile = _profile(recipe, step, time_limit)
    found.profile = found_profile.to_dict()
    _add_profile(found, found_profile, recipe)
    if step is not None:
        return found
    tell("cutting the step into phases")
    found.phases_pct = _phases(recipe, time_limit)
    tell("checking the net")
    _add_net(found, recipe)
    return found


def _smaller_batch(recipe: Recipe, found: Examination) -> Recipe:
    """The recipe with a batch that the job's few samples fill."""
    job = load_job(recipe)
    count = len(job.train if job.dataset is None else job.dataset.train)
    count = min(count, recipe.train_samples or count)
    if recipe.last_batch == "keep" or not 0 < count < recipe.global_batch_size:
        return recipe
    each = max(1, count * recipe.batch_size_per_device // recipe.global_batch_size)
    message = f"{count} training samples make no whole batch of {recipe.global_batch_size}: examined at {each} a device"
    found.add("job-batch", "warning", message, "", "--batch-size-per-device, or --last-batch keep")
    return recipe.override(batch_size_per_device=each)


def _profile(recipe: Recipe, step: str | None, time_limit: float) -> Any:
    env = runtime.applied(runtime.child_env(recipe.runtime, recipe.env))
    if step is not None:
        if recipe.job is None:
            raise UsageError(f"step {step!r}: name the job file that defines it")
        target = f"{recipe.job}:{step}"
    else:
        target, env[_RECIPE] = "gluontune.training.diagnosis:make_step", json.dumps(recipe.to_dict())
    return compute.profile(target, dtype=recipe.dtype, env=env, timeout=time_limit)


def make_step() -> Callable[[], Any]:
    """gluontune's training step of the recipe in the environment variable; called in the profiled process."""
    session = resolve(ENGINES["mxnet"].session)(Recipe.from_dict(json.loads(os.environ[_RECIPE])))
    try:
        session.build()
    except GluontuneError as error:
        raise SystemExit(str(error)) from error
    return session.step


def _add_profile(found: Examination, profile: Any, recipe: Recipe) -> None:
    times = f"one step {profile.step_ms:.1f} ms, {profile.onednn_ms:.1f} ms of it in oneDNN, with its log on"
    for cure in profile.cures:
        slow = [p for p in profile.slow if p.cure == cure.rewrite]
        seen = "; ".join(f"{p.primitive} {p.implementation} {p.direction} {p.ms:.1f} ms" for p in slow[:3])
        names = [*recipe.rewrites, cure.rewrite]
        fix = f"--set 'rewrites=[{', '.join(names)}]', or gt.compute.apply_rewrites(net, {names!r}, x)"
        found.add("job-slow-path", "warning", str(cure), seen, fix)
    if profile.cures:
        found.sentence = f"{profile.cures[0]}."
    else:
        found.sentence = f"No slow path with a known cure in this step: {times}."
        found.add("job-slow-path", "ok", "no slow path with a known cure", times)
    for operator in profile.operators:
        if operator.remark:
            found.add("job-operator", "info", f"{operator.name}: {operator.remark}", f"{operator.ms:.1f} ms a step")
    for note in profile.notes:
        found.add("job-slow-path", "info", note)


def _phases(recipe: Recipe, time_limit: float) -> dict[str, float]:
    """Shares of the phases of real steps; empty if the steps are too long."""
    with Group(recipe, time_limit=time_limit) as group:
        group.steps(2)
        seen = group.steps(2)
        if seen["seconds"] / 2 * _PHASE_STEPS > _LONGEST_S:
            return {}
        group.steps(_PHASE_STEPS)
        return dict(group.phases()["phases_pct"])


def _add_net(found: Examination, recipe: Recipe) -> None:
    ctx = contexts(recipe.devices, 1, 0)[0]
    made = _net_and_inputs(recipe, ctx)
    if made is None:
        found.add("job-hybridize", "info", "what the job's nets take is known to its step() only: not checked here")
        return
    net, inputs, named = made
    sample = inputs[0] if len(inputs) == 1 else list(inputs)
    check = compute.check_hybridizable(net, sample)
    found.hybridize = check.to_dict()
    for finding in check.findings:
        where = " ".join(part for part in (finding.path or "the net", f"({finding.block})", finding.where) if part)
        message = f"{where}: {finding.reason}"
        found.add("job-hybridize", finding.severity, message, finding.detail, finding.cure)
    if not check.findings:
        found.add("job-hybridize", "ok", "the net compiles and computes the same", "; ".join(check.notes))
    data = found.phases_pct.get("data", 0.0)
    if data >= _INPUT_PCT:
        message = f"waiting for the next batch takes {data:.0f} % of the step"
        shares = ", ".join(f"{k} {v:.0f} %" for k, v in found.phases_pct.items())
        found.add("job-input", "warning", message, shares, _FASTER_INPUT if named else _FASTER_GLUON_INPUT)
    device = ctx.device_type
    dtype = recipe.dtype if recipe.dtype != "float32" else "float16" if device == "gpu" else "bfloat16"
    reasons = compute.why_no_gain(net, sample, dtype=dtype, device=device, phases_pct=found.phases_pct)
    for reason in reasons:
        found.add("job-16-bits", "info", f"{dtype} may bring little: {reason}")
    if not reasons:
        found.add("job-16-bits", "ok", f"nothing speaks against {dtype}", "", "--dtype " + dtype)


def _net_and_inputs(recipe: Recipe, ctx: Any) -> tuple[Any, tuple[Any, ...], bool] | None:
    """The job's net, initialized, a batch for it (noise in place of images), and whether its data have a name.

    None if only the job's step() knows the net's inputs.
    """
    mx = mxnet()
    job = load_job(recipe)
    if job.step is not None:
        return None
    with contextlib.closing(make_feed(recipe, job, 0, 1)) as feed:
        net = job.net()
        give_values(net, ctx)
        inputs = feed.inputs(ctx)
        if feed.image_shape is not None:
            inputs = (runtime.as_net_array(mx.nd.random.normal(shape=inputs[0].shape, ctx=ctx)),)
        return net, inputs, job.dataset is not None


_SCRIPT_STEPS = 10  # of a script, for its phases
_LARGE_PCT = 25.0  # of the step, from which on a phase is worth a warning
#: What a phase is called, and which change of ``gluontune run`` makes it shorter.
_PHASES = {
    "data": ("waiting for the next batch", "samples"), "forward": ("the forward pass", "blocks"),
    "backward": ("the backward pass", "blocks"), "update": ("the update", ENVIRONMENT),
    "rest": ("the script's own work between them", ""),
}  # fmt: skip
#: What a change does, and what is so without it.
_CHANGES = {
    "samples": ("samples can be kept in memory", "samples are made anew each time"),
    "blocks": ("blocks can be compiled", "blocks are not compiled"),
    "torch": ("PyTorch can compute the same steps", "PyTorch does not compute it"),
}


def examine_script(
    words: Sequence[str], *, time_limit: float = 300.0, say: Callable[[str], None] | None = None
) -> Examination:
    """Look at the first steps of an unchanged script, as it is and with each change of ``gluontune run``.

    The script runs up to four times, one after the other, and is left after these steps; what it has written by then
    stays. The phases come first, by their share of a step.

    Args:
        words: the script and its own words, or ``-m``, a module and its words.
        time_limit: seconds of one process. say: called with lines of progress.
    """
    tell = say or (lambda line: None)
    Program.of(words).check()
    run = ScriptRun(tuple(words))
    ways = {
        "samples": run.override(changes=("samples",)), "blocks": run.override(changes=("blocks",)),
        "torch": run.override(runtime="tuned", backend="torch"),
    }  # fmt: skip
    tell("its first steps, as it is")
    try:
        found = Examination(phases_pct=_look(run, time_limit)["phases_pct"])
    except RunFailed as failure:
        raise GluontuneError(failure.message) from failure
    why_not = {} if pytorch.installed() else {"torch": f"PyTorch is not installed: {pytorch.INSTALL}"}
    for name in [name for name in ways if name not in why_not]:
        tell(f"its first steps, with {name}")
        try:
            _look(ways[name], time_limit)
        except RunFailed as failure:
            why_not[name] = failure.message
    for share, phase in sorted(((v, k) for k, v in found.phases_pct.items()), reverse=True):
        what, change = _PHASES[phase]
        severity = "warning" if share >= _LARGE_PCT and change and change not in why_not else "info"
        fix = f"gluontune run {shlex.join(words)}" if severity == "warning" else ""
        found.add(f"script-{phase}", severity, f"{what} takes {share:.0f} % of a step", why_not.get(change, ""), fix)
        found.sentence = found.sentence or f"{what[0].upper()}{what[1:]} takes {share:.0f} % of a step of {run.job}."
    for name, (does, does_not) in _CHANGES.items():
        if name in why_not:
            found.add(f"script-{name}", "info", f"{does_not}: {why_not[name]}")
        else:
            way = ways[name]
            if name == "torch":
                way = way.override(changes=("samples",))  # run keeps them where there are any
            found.add(f"script-{name}", "ok", does, f"by {way.command()}")
    return found


def _look(run: ScriptRun, time_limit: float) -> Mapping[str, Any]:
    """What a process sees of the script's first steps."""
    with Group(cast(Any, run), time_limit=time_limit, site=ScriptSite) as group:
        steps = max(1, min(_SCRIPT_STEPS, int(_LONGEST_S / max(group.ready[0]["step_s"], 1e-6))))
        return group.individual("phases", steps=steps)
