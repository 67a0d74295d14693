"""Builds the output of `gpupipe profile`: the table of stages, the limiting resource, advice."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpupipe.bench.compare import disturbance
from gpupipe.bench.layout import WordTable
from gpupipe.bench.profile import BATCH_STAGE, DELIVER, READ, Profile, Stage
from gpupipe.bench.tables import new_table
from gpupipe.bench.training import Training
from gpupipe.errors import counted

_BUSY = 0.85
_NEAR = 1.25
_HARDLY = 0.05
_MAX_NEGATIVE = 0.1
"""The costs of stages tell something if none is below minus this share of the time."""
_ADVICE = {
    DELIVER: "make what is delivered smaller: loader.dtype=float16, or uint8 without to_dtype and "
    "normalize",
    READ: "a faster disk, or the files in memory",
    BATCH_STAGE: "run it on a GPU, loader.device=gpu, or deliver smaller numbers, "
    "loader.dtype=float16",
}
_OTHER_ADVICE = "do that step less often, or on smaller images"


def profile_table(profile: Profile) -> WordTable:
    """Return the table of `gpupipe profile`: without the costs of stages that do not add up."""
    doubt = _explain_doubt(profile)
    costs = ("this costs, us a sample", "CPU, us a sample", "share of the time")
    table = new_table("", "up to", "images/s", *(() if doubt else costs))
    for stage, before in profile.pairs:
        described = () if doubt else _describe_costs(profile, stage, before)
        table.add_row(stage.name, f"{stage.rate:,.0f}", *described)
    if not profile.is_by_parts:
        table.note = (
            f"Engine {profile.what['engine']} cannot read alone, or run its steps without "
            "delivery: only whole batches are timed."
        )
    elif doubt:
        table.note = doubt
    elif min(_list_shares(profile)) < -0.01:
        table.note = (
            "Less than 0: with it, the steps before have less to do, or are done together with it."
        )
    return table


def _describe_costs(profile: Profile, stage: Stage, before: Stage | None) -> tuple[str, str, str]:
    costs, cpu = stage.costs(before), statistics.median(stage.cpu_costs(before))
    spread = f" ± {1e6 * statistics.stdev(costs):,.0f}" if len(costs) > 1 else ""
    share = statistics.median(costs) / statistics.median(profile.whole.seconds)
    return f"{1e6 * statistics.median(costs):,.0f}{spread}", f"{1e6 * cpu:,.0f}", f"{share:.0%}"


def _list_shares(profile: Profile) -> list[float]:
    """Return the share of the time that each stage costs; it may be below 0."""
    whole = statistics.median(profile.whole.seconds)
    return [statistics.median(stage.costs(before)) / whole for stage, before in profile.pairs]


def _explain_doubt(profile: Profile) -> str:
    """Return why the costs of the stages tell nothing; "" if they do."""
    shares = _list_shares(profile)
    lowest = min(shares)
    if lowest >= -_MAX_NEGATIVE:
        return ""
    return (
        f"What each step costs cannot be determined: '{profile.stages[shares.index(lowest)].name}' "
        f"saves {-lowest:.0%} of the time. Either the steps before have less to do with it, as a "
        "decode has before a crop: --trace shows each kernel. Or the rounds differ too much: more "
        "--repeats or --repeat-seconds, with nothing beside it, would tell."
    )


def describe_training(training: Training | None, ceiling: float | None) -> Iterator[str]:
    """Yield lines about the share of training time that is spent waiting for data.

    Args:
        training: The measured rates; None if no training was measured.
        ceiling: The images per second of an empty loop, which are reported if `training` is None.
    """
    if training is None:
        yield (
            f"A loop over batches that are kept: {ceiling or 0:,.0f} images/s. --step-ms or "
            "--model tells how much of a training step is waiting."
        )
        return
    fed, kept = statistics.fmean(training.fed), statistics.fmean(training.replayed)
    yield (
        f"Training ({training.what}): {fed:,.0f} images/s; on kept batches, without loading, "
        f"{kept:,.0f}."
    )
    waiting, sure = training.waiting, ""
    if waiting.low is not None and waiting.high is not None:
        sure = f" ({waiting.low:.0%} to {waiting.high:.0%}, with 95 % confidence)"
    if training.is_vague:
        yield (
            f"Waiting for data: cannot be determined, the rounds differ too much{sure}. "
            "More --repeats or --repeat-seconds, with nothing beside it, would tell."
        )
    else:
        yield (
            f"Waiting for data: {max(0.0, waiting.value):.0%} of step time{sure}. Accelerator "
            f"utilisation (AU of MLPerf Storage): {training.accelerator_utilisation:.0%}."
        )


@dataclass(frozen=True)
class Limit:
    """The resource that limits a loader.

    Attributes:
        resource: "training", "server", "GPU", "CPU", "storage", "waiting" or "unknown".
        sentences: Sentences with the evidence and the advice.
    """

    resource: str
    sentences: list[str]


def find_limit(
    profile: Profile,
    threads: int,
    training: Training | None = None,
    step_advice: Mapping[str, str] | None = None,
) -> Limit:
    """Find the resource that limits a loader.

    Args:
        profile: The loader's profile.
        threads: The loader's number of threads, or of worker processes.
        training: The measured rates of training; None if no training was measured.
        step_advice: Maps the name of a step's stage to advice on how to reduce its time.
    """
    # A gpupipe server on this machine uses the same cores, but is part of the work.
    if not profile.is_received and disturbance(profile.disturbed):
        doubt = "Other processes use the same cores, so the limit cannot be determined."
        return Limit("unknown", [doubt])
    if training and not training.is_vague and training.waiting.value < _HARDLY:
        no_gain = "Training limits, not the loader: a faster loader would change nothing."
        return Limit("training", [no_gain])
    if profile.is_received:
        return _describe_server_limit(profile)
    return _find_local_limit(profile, threads, _ADVICE | dict(step_advice or {}))


def _find_local_limit(profile: Profile, threads: int, advice: Mapping[str, str]) -> Limit:
    """Find the limit of a loader that makes its batches on this machine, not on a server."""
    cores, verb = _name_cores(profile), "is" if profile.cores == 1 else "are"
    busy = f"{cores} {verb} busy {min(1.0, profile.busy):.0%} of the time"
    if profile.gpu_utilisation is not None and profile.gpu_utilisation >= _BUSY:
        evidence = (
            f"The GPU limits: it is busy {profile.gpu_utilisation:.0%} of the time with decoding "
            "and steps."
        )
        return Limit("GPU", [evidence, *_describe_costliest(profile, advice)])
    if profile.busy >= _BUSY:
        return Limit("CPU", [f"The CPU limits: {busy}.", *_describe_costliest(profile, advice)])
    read = profile.stages[0]
    if profile.is_by_parts and read.rate < _NEAR * profile.whole.rate:
        return Limit(
            "storage",
            [
                f"Storage limits: reading alone makes {read.rate:,.0f} images/s, and {busy}.",
                f"To change that: {_ADVICE[READ]}; more loader.prefetch hides waits, but no "
                "lack of throughput.",
            ],
        )
    change = "more loader.prefetch, or a larger batch; 'gpupipe tune' tries them"
    if threads < profile.cores:
        setting = profile.what["parallelism_setting"]
        change = f"loader.{setting}={profile.cores}, one for each core"
    return Limit(
        "waiting", [f"Nothing is busy all the time: {busy}.", f"To change that: {change}."]
    )


def _describe_server_limit(profile: Profile) -> Limit:
    """Describe the limit of a loader that receives its batches from a server."""
    here = f"{_name_cores(profile)} here busy {min(1.0, profile.busy):.0%} of the time"
    return Limit(
        "server",
        [
            f"The server limits, or the way to it: {profile.whole.rate:,.0f} images/s come, and "
            f"receiving them keeps {here}.",
            "'gpupipe profile' where the server runs tells what limits there, and 'gpupipe "
            "status' whom else it feeds.",
        ],
    )


def _name_cores(profile: Profile) -> str:
    return "the core" if profile.cores == 1 else f"the {counted(profile.cores, 'core')}"


def _describe_costliest(profile: Profile, advice: Mapping[str, str]) -> Iterator[str]:
    """Yield the name of the stage that costs most time, and advice to reduce its cost."""
    others = "'gpupipe compare' tells what other engines make of the same work"
    if not profile.is_by_parts or _explain_doubt(profile):
        yield f"To change that: {others}."
        return
    cost, name = max((statistics.median(s.costs(before)), s.name) for s, before in profile.pairs)
    share = cost / statistics.median(profile.whole.seconds)
    yield f"The most of it, {share:.0%}, goes to '{name}'."
    is_on_cpu = profile.what["device"] == "cpu"
    more = f"more cores; {others}" if is_on_cpu else "more of the work on the CPU"
    yield f"To change that: {advice.get(name) or _OTHER_ADVICE}; {more}."
