"""The tables of README.md, docs/performance.md and docs/comparing.md are those of the results."""

import json

import pytest


@pytest.mark.parametrize(
    ("name", "row_end", "rows"),
    [
        ("rates in brief", " |\n", 5),
        ("rates", " |\n", 7),
        ("comparison", " MiB\n", 6),
    ],
)
def test_a_table_has_a_row_for_each_contestant(name: str, row_end: str, rows: int) -> None:
    import performance_tables

    table = performance_tables.write_tables()[name]
    head = 2 if row_end == " |\n" else 0
    assert table.count(row_end) == head + rows


def test_the_tables_on_the_pages_are_those_of_the_results() -> None:
    import performance_tables

    for name, table in performance_tables.write_tables().items():
        begin, end = performance_tables.mark(name)
        assert f"{begin}{table}{end}" in performance_tables.TABLES[name].read_text(), name


def test_the_table_of_the_lock_has_a_row_for_each_pipeline() -> None:
    import harness
    import performance_tables

    result = json.loads((harness.REPOSITORY / "benchmarks/results/gil.json").read_text())
    rows = performance_tables.write_lock(result, result).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == [f"| `{n}`" for n in result["pipelines"]]


def test_the_sentence_about_the_steps_names_those_that_are_not_below_the_limit() -> None:
    import performance_tables

    import steps

    rounds = {
        "hue": {"gpupipe": [100.0], "torchvision": [200.0]},
        "contrast": {"gpupipe": [58.0], "torchvision": [40.0]},
        "rgb": {"gpupipe": [80.0], "torchvision": [64.0]},
    }
    result = {"steps": {name: steps.summarize(name, found) for name, found in rounds.items()}}
    text = performance_tables.write_steps_in_brief(result, "the time").replace("\n", " ")
    assert text.startswith("1 of the 3 cases take at most the time of the fastest library. ")
    assert "at most 60 µs: contrast (58 µs, 1.45 times)." in text
    assert "Above the goal: rgb (80 µs, 1.25 times)." in text
    text = performance_tables.write_steps_in_brief(result, "twice the time")
    assert text.startswith("3 of the 3 cases take at most twice the time")


def test_the_table_has_a_row_for_each_step() -> None:
    import performance_tables

    step = {"microseconds": {"gpupipe": -3.0, "torchvision": 1234.5}, "ratio": {"median": -0.01}}
    row = performance_tables.write_steps({"steps": {"pad 10": step}}).splitlines()[-1]
    assert row == "| pad 10 | -3 |  |  | 1,234 | -0.01 |"
