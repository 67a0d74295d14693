"""Says what `gpupipe tune` found: the settings to use, as YAML, and how certain the gain is."""

from __future__ import annotations

from typing import Any

import yaml

from gpupipe.bench.cache_candidate import SETTING
from gpupipe.bench.tune import TuneResult


def describe_tuning(result: TuneResult, batch_size: int) -> list[str]:
    """Return the settings to use, as YAML, and how certain the gain is.

    Args:
        result: The result of the search.
        batch_size: The batch size of the original settings.
    """
    tail = (
        [f"not tried, for lack of time: {', '.join(result.untried)}; --seconds gives more"]
        if result.untried
        else []
    )
    gain = result.gain
    if not result.trials:
        return [f"Whether other settings are faster cannot be determined: {_why_untried(result)}."]
    if gain is None or gain.low is None or gain.high is None:
        if result.changes:
            return [
                f"Whether {_format_changes(result.changes)} is faster cannot be determined: "
                "Ctrl-C came before it was confirmed.",
                *tail,
            ]
        return ["Nothing that was tried is faster than the settings as they are.", *tail]
    sure = (
        f"{gain.value:.2f} times as many images a second as before ({gain.low:.2f} to "
        f"{gain.high:.2f}, with 95 % confidence)"
    )
    if gain.is_vague and not result.is_certain:
        return [
            f"Whether the best that was tried is faster cannot be determined: it made {sure}. "
            "More --seconds, with nothing beside it, would tell.",
            *tail,
        ]
    if not result.is_certain:
        return [
            "Nothing that was tried is faster beyond doubt: keep the settings as they are. "
            f"The best of them made {sure}.",
            *tail,
        ]
    lines = [
        f"{sure}, with",
        "",
        *yaml.safe_dump(_nest(result.changes), sort_keys=False).splitlines(),
        "",
    ]
    if SETTING in result.changes:
        size = result.changes[SETTING]["max_bytes"]
        lines.append(
            f"The decoded cache takes up to {size} of memory on each machine, beside the batches: "
            f"--keep {SETTING} leaves it out."
        )
    if "batch_size" in result.changes:
        lines.append(
            "batch_size also changes what a training step sees: --keep batch_size leaves "
            f"it at {batch_size}."
        )
    return lines + tail


def _nest(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes as a config has them."""
    loader = {name: value for name, value in changes.items() if name != SETTING}
    nested: dict[str, Any] = {"loader": loader} if loader else {}
    if SETTING in changes:
        section, _, name = SETTING.partition(".")
        nested[section] = {name: dict(changes[SETTING])}
    return nested


def _format_changes(changes: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in changes.items())


def _why_untried(result: TuneResult) -> str:
    if result.enough_seconds is not None:
        names = ", ".join(result.untried)
        return (
            f"there was no time to try any ({names}), since a trial takes "
            f"{result.trial_seconds:.1f} s here: --seconds {result.enough_seconds} tries the first"
        )
    return "none was tried before Ctrl-C" if result.interrupted else "--keep leaves none to try"
