"""The tables that the commands print."""

from __future__ import annotations

from dataclasses import replace

from gpupipe.bench.tables import speed_columns, speed_rows
from helpers.made_comparison import measured


def test_a_row_has_the_means_and_medians_of_a_side() -> None:
    comparison = measured({"one": [100, 200, 300], "two": [100, 100, 100]})
    one = comparison.results[0]
    for n, run in enumerate(one.outcomes):
        one.outcomes[n] = replace(
            run, peak_memory=(n + 1) * 512 * 2**20, first_batch_seconds=n / 2, cpu_seconds=1.0
        )
    heads = speed_columns(comparison, "times two")
    row = dict(zip(heads, next(iter(speed_rows(comparison))), strict=True))
    images = one.outcomes[0].images
    assert row[""] == "one"
    assert row["images/s"].startswith("200 ± 100")
    assert row["first batch"] == "0.50 s"
    assert row["peak memory"] == "1,024 MiB"
    assert row["CPU s / 1,000"] == f"{1000 / images:.2f}"
