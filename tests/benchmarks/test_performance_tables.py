"""The tables of README.md, docs/performance.md and docs/comparing.md are those of the results."""

import pytest


@pytest.mark.parametrize(
    ("name", "row_end", "rows"),
    [
        ("rates in brief", " |\n", 5),
        ("rates", " |\n", 7),
        ("lock", " |\n", 9),  # three workloads, and six recipes
        ("comparison", " MiB\n", 6),
    ],
)
def test_a_table_on_a_page_is_that_of_the_result(name: str, row_end: str, rows: int) -> None:
    import performance_tables

    begin, end = performance_tables.mark(name)
    table = performance_tables.write_tables()[name]
    assert f"{begin}{table}{end}" in performance_tables.TABLES[name].read_text()
    head = 2 if row_end == " |\n" else 0
    assert table.count(row_end) == head + rows


def test_the_table_has_a_row_for_each_step() -> None:
    import performance_tables

    step = {"microseconds": {"gpupipe": -3.0, "torchvision": 1234.5}, "ratio": {"median": -0.01}}
    row = performance_tables.write_steps({"steps": {"pad 10": step}}).splitlines()[-1]
    assert row == "| pad 10 | -3 |  |  | 1,234 | -0.01 |"
