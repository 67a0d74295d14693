"""The tables of docs/performance.md are those of the results."""

from __future__ import annotations


def test_the_table_on_the_page_is_that_of_the_result() -> None:
    import performance_tables

    table = performance_tables.write_tables()["lock"]
    begin, end = performance_tables.mark("lock")
    assert f"{begin}{table}{end}" in performance_tables.PAGE.read_text()
    assert table.count("\n") == 2 + 9, "three workloads, and six recipes"


def test_the_table_has_a_row_for_each_step() -> None:
    import performance_tables

    step = {"microseconds": {"gpupipe": -3.0, "torchvision": 1234.5}, "ratio": {"median": -0.01}}
    row = performance_tables.write_steps({"steps": {"pad 10": step}}).splitlines()[-1]
    assert row == "| pad 10 | -3 |  |  | 1,234 | -0.01 |"
