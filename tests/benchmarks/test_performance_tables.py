"""The tables of README.md and docs/performance.md are those of the results."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("name", ["rates in brief", "rates", "lock"])
def test_a_table_on_a_page_is_that_of_the_result(name: str) -> None:
    import performance_tables

    begin, end = performance_tables.mark(name)
    table = performance_tables.write_tables()[name]
    assert f"{begin}{table}{end}" in performance_tables.TABLES[name].read_text()
    rows = {"rates in brief": 5, "rates": 7, "lock": 9}  # three workloads, and six recipes
    assert table.count("\n") == 2 + rows[name]


def test_the_table_has_a_row_for_each_step() -> None:
    import performance_tables

    step = {"microseconds": {"gpupipe": -3.0, "torchvision": 1234.5}, "ratio": {"median": -0.01}}
    row = performance_tables.write_steps({"steps": {"pad 10": step}}).splitlines()[-1]
    assert row == "| pad 10 | -3 |  |  | 1,234 | -0.01 |"
