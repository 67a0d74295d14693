"""Comparisons with known figures, made by hand."""

import re

from gpupipe.bench.comparison import Comparison, Contestant, Result
from gpupipe.bench.contestant import Contest, ContestOutcome

RATES = {
    "DALI on GPU": [140000.0, 164000.0, 129000.0],
    "DALI on CPU": [1700.0, 1760.0, 1690.0],
    "DataLoader, 0 workers": [240.0, 250.0, 238.0],
    "DataLoader, 1 worker": [230.0, 245.0, 233.0],
    "DataLoader, 16 workers": [900.0, 1000.0, 950.0],
}
BATCHES, BATCH_SIZE = 20, 256
COMMAND = "gpupipe compare faces.yaml --cpu-workers 0,1,16 --out '<a folder>'"


def outcome(rate: float) -> ContestOutcome:
    images = BATCHES * BATCH_SIZE
    data = {
        "root": "/faces",
        "images": 2000,
        "pipeline": "affine",
        "batch_size": BATCH_SIZE,
        "steps": ["decode"],
    }
    return ContestOutcome(
        "dali", "cpu", "2 threads", images, BATCHES, images / rate, 0.5, 4.0, 2**30, 0.5, "", data
    )


def result(name: str, *rates: float) -> Result:
    """A side that delivered so many images a second in each round."""
    return Result(Contestant(name, {}), [outcome(rate) for rate in rates])


def measured(rates: dict[str, list[float]]) -> Comparison:
    results = []
    for name, values in rates.items():
        count = re.search(r"\d+", name)
        contestant = Contestant(name, {}, int(count[0]) if count else None)
        results.append(Result(contestant, [outcome(rate) for rate in values]))
    contest = Contest("faces.yaml", (), {}, (0, 1), BATCHES, 3, True)
    return Comparison(
        results,
        contest,
        repeats=len(next(iter(rates.values()))),
        notes=["stand-in data, <not> LFW"],
        command=COMMAND,
    )
