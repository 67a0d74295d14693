"""What the rounds of contestants say: medians, ratios, goals; and how they are printed."""

import statistics
from collections.abc import Iterable
from typing import Any

_QUIET = 0.1


def median(results: Iterable[dict[str, Any]], key: str) -> float:
    return statistics.median(r[key] for r in results)


def ratio(
    results: list[dict[str, Any]], to: list[dict[str, Any]], key: str = "images_per_second"
) -> dict[str, Any]:
    """One ratio a round, each of two runs next to each other.

    With n rounds, min to max holds the true median with 1 - 2^(1-n) confidence.
    """
    rounds = [a[key] / b[key] for a, b in zip(results, to, strict=True)]
    confidence = 1 - 2.0 ** (1 - len(rounds))
    return {
        "median": statistics.median(rounds),
        "min": min(rounds),
        "max": max(rounds),
        "confidence": confidence,
        "rounds": rounds,
    }


def disturbed(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Whose runs had to share the cores with other processes."""
    return [
        name for name, found in results.items() if max(r["others_cores"] for r in found) > _QUIET
    ]


def goal(what: str, value: float, bound: float, at_most: bool = False) -> dict[str, Any]:
    """A figure against what it should be."""
    return {
        "goal": what,
        "value": value,
        "bound": bound,
        "at_most": at_most,
        "holds": value <= bound if at_most else value >= bound,
    }


def print_goals(goals: list[dict[str, Any]]) -> None:
    for g in goals:
        print(
            f"  {'holds ' if g['holds'] else 'FAILS '} {g['goal']}: {g['value']:.4g} (goal "
            f"{'<=' if g['at_most'] else '>='} {g['bound']:g})"
        )


_COLUMNS = (
    ("images/s", "images_per_second", ",.0f"),
    ("CPU s/1000", "cpu_seconds_per_1000", ".3f"),
    ("first batch s", "first_batch_seconds", ".2f"),
    ("peak MiB", "peak_memory_mib", ",.0f"),
    ("GPU MiB", "peak_gpu_mib", ",.0f"),
    ("others' cores", "others_cores", ".2f"),
)


def print_table(results: dict[str, list[dict[str, Any]]]) -> None:
    """Medians, and the range of the rates, of every contestant."""
    columns = [c for c in _COLUMNS if all(c[1] in r for found in results.values() for r in found)]
    print(
        f"  {'':28}"
        + "".join(f"{title:>15}" for title, _, _ in columns)
        + "   images/s, min to max"
    )
    for name, found in results.items():
        rates = [r["images_per_second"] for r in found]
        cells = "".join(f"{median(found, key):>15{style}}" for _, key, style in columns)
        print(f"  {name:28}{cells}   {min(rates):,.0f} to {max(rates):,.0f}")
    if disturbed(results):
        print(
            f"  DISTURBED: other processes kept more than {_QUIET} cores busy in some runs; "
            "measure again with nothing beside it"
        )


def print_ratio(name: str, found: dict[str, Any]) -> None:
    print(
        f"  {name}: median {found['median']:.3f}, {found['min']:.3f} to {found['max']:.3f} "
        f"over {len(found['rounds'])} rounds"
    )
