"""Reads off a profile which resource limits a loader, and what to change."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from gpupipe.bench.compare import disturbance
from gpupipe.bench.profile import DELIVER, READ, RECEIVE, Profile, Stage
from gpupipe.bench.training import Training
from gpupipe.errors import counted

_BUSY = 0.85
_NEAR = 1.25
_HARDLY = 0.05
_HINTS = {
    "decode": "store images nearer to the size that is trained on, or decode on a GPU "
    "(loader.device)",
    "resize": "store images nearer to the size that is trained on",
    "random_resized_crop": "store images nearer to the size that is trained on",
    "random_affine": "interpolation: nearest costs less than bilinear",
    "random_rotation": "interpolation: nearest costs less than bilinear",
    "to_dtype": "leave it out with normalize, and do both on the GPU: a batch of uint8 is a "
    "quarter of one of float32",
    "normalize": "leave it out with to_dtype, and do both on the GPU: a batch of uint8 is a "
    "quarter of one of float32",
    DELIVER: "make what is delivered smaller: loader.dtype=float16, or uint8 without to_dtype and "
    "normalize",
    READ: "a faster disk, or the files in memory",
}


@dataclass(frozen=True)
class Limit:
    """The resource that limits a loader.

    Attributes:
        resource: "training", "server", "GPU", "CPU", "storage", "waiting" or "unknown".
        said: Sentences with the evidence and the advice.

    """

    resource: str
    said: tuple[str, ...]


def limit(profile: Profile, threads: int, training: Training | None = None) -> Limit:
    """Find the resource that limits a loader.

    Args:
        profile: The loader's profile.
        threads: Its number of threads, or of worker processes.
        training: How much of a training step waits for data, if that was measured.

    """
    # A gpupipe server on this machine is part of the work, and no disturbance.
    if profile.whole.name != RECEIVE and disturbance(profile.disturbed):
        return Limit(
            "unknown",
            ("What limits cannot be determined while other processes use the same cores.",),
        )
    if training and not training.vague and training.waiting.value < _HARDLY:
        return Limit(
            "training", ("Training limits, not the loader: a faster loader would change nothing.",)
        )
    if profile.whole.name == RECEIVE:
        return _server(profile)
    return _here(profile, threads)


def _here(profile: Profile, threads: int) -> Limit:
    """Find the limit of a loader that makes its batches in this process."""
    if profile.gpu_utilisation is not None and profile.gpu_utilisation >= _BUSY:
        return Limit(
            "GPU",
            (
                f"The GPU limits: it is busy {profile.gpu_utilisation:.0%} of the time with "
                "decoding and steps.",
                *_costliest(profile),
            ),
        )
    if profile.busy >= _BUSY:
        return Limit(
            "CPU", (f"The CPU limits: {_cores(profile)} {_busy(profile)}.", *_costliest(profile))
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
                f"To change that: {_HINTS[READ]}; more loader.prefetch hides waits, but no "
                "lack of throughput.",
            ),
        )
    evidence = f"Nothing is busy all the time: {_cores(profile)} {_busy(profile)}."
    if threads < profile.cores:
        kind = "workers" if profile.what["engine"] == "dataloader" else "threads"
        return Limit(
            "waiting",
            (evidence, f"To change that: loader.{kind}={profile.cores}, one for each core."),
        )
    return Limit(
        "waiting",
        (
            evidence,
            "To change that: more loader.prefetch, or a larger batch; 'gpupipe tune' tries them.",
        ),
    )


def _server(profile: Profile) -> Limit:
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


def _costliest(profile: Profile) -> Iterator[str]:
    """Yield where most of the time goes, and what would change that."""
    if not profile.is_by_parts:
        yield "To change that: 'gpupipe compare' tells what other engines make of the same work."
        return
    stage, share = max(
        ((s, _cost(s, before) / _cost(profile.whole, None)) for s, before in profile.pairs),
        key=lambda pair: pair[1],
    )
    yield f"The most of it, {share:.0%}, goes to '{stage.name}'."
    hint = next(
        (
            text
            for name, text in _HINTS.items()
            if stage.name == name or stage.name.startswith(f"{name}_")
        ),
        "",
    )
    more = (
        "'gpupipe compare' tells what other engines make of the same work"
        if profile.what["device"] == "cpu"
        else "more of the work on the CPU"
    )
    yield (
        f"To change that: {hint or 'do that step less often, or on smaller images'}; "
        f"{'more cores; ' if profile.what['device'] == 'cpu' else ''}{more}."
    )


def _cost(stage: Stage, before: Stage | None) -> float:
    return statistics.median(stage.costs(before))
