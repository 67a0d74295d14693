"""Reads off a profile which resource limits a loader, and what to change."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpupipe.bench.compare import disturbance
from gpupipe.bench.profile import BATCH_STAGE, DELIVER, READ, Profile, Stage
from gpupipe.bench.training import Training
from gpupipe.errors import counted

_BUSY = 0.85
_NEAR = 1.25
_HARDLY = 0.05
_ADVICE = {
    DELIVER: "make what is delivered smaller: loader.dtype=float16, or uint8 without to_dtype and "
    "normalize",
    READ: "a faster disk, or the files in memory",
    BATCH_STAGE: "run it on a GPU, loader.device=gpu, or deliver smaller numbers, "
    "loader.dtype=float16",
}
_OTHER_ADVICE = "do that step less often, or on smaller images"


@dataclass(frozen=True)
class Limit:
    """The resource that limits a loader.

    Attributes:
        resource: "training", "server", "GPU", "CPU", "storage", "waiting" or "unknown".
        sentences: Sentences with the evidence and the advice.
    """

    resource: str
    sentences: tuple[str, ...]


def find_limit(
    profile: Profile,
    threads: int,
    training: Training | None = None,
    step_advice: Mapping[str, str] | None = None,
) -> Limit:
    """Find the resource that limits a loader.

    Args:
        profile: The loader's profile.
        threads: Its number of threads, or of worker processes.
        training: How much of a training step waits for data, if that was measured.
        step_advice: What costs less time than a step, by the name of its stage.
    """
    # A gpupipe server on this machine is part of the work, and no disturbance.
    if not profile.is_received and disturbance(profile.disturbed):
        return Limit(
            "unknown",
            ("What limits cannot be determined while other processes use the same cores.",),
        )
    if training and not training.is_vague and training.waiting.value < _HARDLY:
        return Limit(
            "training", ("Training limits, not the loader: a faster loader would change nothing.",)
        )
    if profile.is_received:
        return _describe_server_limit(profile)
    return _find_local_limit(profile, threads, _ADVICE | dict(step_advice or {}))


def _find_local_limit(profile: Profile, threads: int, advice: Mapping[str, str]) -> Limit:
    """Find the limit of a loader that makes its batches in this process."""
    if profile.gpu_utilisation is not None and profile.gpu_utilisation >= _BUSY:
        return Limit(
            "GPU",
            (
                f"The GPU limits: it is busy {profile.gpu_utilisation:.0%} of the time with "
                "decoding and steps.",
                *_describe_costliest(profile, advice),
            ),
        )
    if profile.busy >= _BUSY:
        return Limit(
            "CPU",
            (
                f"The CPU limits: {_cores(profile)} {_busy(profile)}.",
                *_describe_costliest(profile, advice),
            ),
        )
    read = profile.stages[0]
    if profile.is_by_parts and read.rate < _NEAR * profile.whole.rate:
        evidence = (
            f"Storage limits: reading alone makes {read.rate:,.0f} images/s, and "
            f"{_cores(profile)} {_busy(profile)}."
        )
        return Limit(
            "storage",
            (
                evidence,
                f"To change that: {_ADVICE[READ]}; more loader.prefetch hides waits, but no "
                "lack of throughput.",
            ),
        )
    evidence = f"Nothing is busy all the time: {_cores(profile)} {_busy(profile)}."
    if threads < profile.cores:
        setting = profile.what["parallelism_setting"]
        return Limit(
            "waiting",
            (evidence, f"To change that: loader.{setting}={profile.cores}, one for each core."),
        )
    return Limit(
        "waiting",
        (
            evidence,
            "To change that: more loader.prefetch, or a larger batch; 'gpupipe tune' tries them.",
        ),
    )


def _describe_server_limit(profile: Profile) -> Limit:
    """Describe the limit of a client, which sees only the batches that arrive."""
    here = f"{_cores(profile)} here busy {min(1.0, profile.busy):.0%} of the time"
    evidence = (
        f"The server limits, or the way to it: {profile.whole.rate:,.0f} images/s come, and "
        f"receiving them keeps {here}."
    )
    return Limit(
        "server",
        (
            evidence,
            "'gpupipe profile' where the server runs tells what limits there, and 'gpupipe "
            "status' whom else it feeds.",
        ),
    )


def _cores(profile: Profile) -> str:
    return "the core" if profile.cores == 1 else f"the {counted(profile.cores, 'core')}"


def _busy(profile: Profile) -> str:
    return f"{'is' if profile.cores == 1 else 'are'} busy {min(1.0, profile.busy):.0%} of the time"


def _describe_costliest(profile: Profile, advice: Mapping[str, str]) -> Iterator[str]:
    """Yield where most of the time goes, and what would change that."""
    if not profile.is_by_parts:
        yield "To change that: 'gpupipe compare' tells what other engines make of the same work."
        return
    stage, share = max(
        ((s, _cost(s, before) / _cost(profile.whole, None)) for s, before in profile.pairs),
        key=lambda pair: pair[1],
    )
    yield f"The most of it, {share:.0%}, goes to '{stage.name}'."
    more = (
        "'gpupipe compare' tells what other engines make of the same work"
        if profile.what["device"] == "cpu"
        else "more of the work on the CPU"
    )
    yield (
        f"To change that: {advice.get(stage.name) or _OTHER_ADVICE}; "
        f"{'more cores; ' if profile.what['device'] == 'cpu' else ''}{more}."
    )


def _cost(stage: Stage, before: Stage | None) -> float:
    return statistics.median(stage.costs(before))
