"""Tables by the width of the screen: beside each other, stacked, and in a pipe."""

import io

import pytest
from rich.console import Console

from gpupipe.bench.layout import WordTable

ROWS = [
    ("DALI on GPU", "1,234 ± 56", "random_resized_crop and random_horizontal_flip, then nothing"),
    ("cpu", "987 ± 6", ""),
]


def show(table: WordTable, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().splitlines()


@pytest.fixture
def table() -> WordTable:
    created = WordTable("Rates", "side", "images/s", "steps")
    for row in ROWS:
        created.add_row(*row)
    created.note = "measured once"
    return created


@pytest.mark.parametrize("width", [60, 66, 80])
def test_lines_break_between_words_and_end_without_spaces(table: WordTable, width: int) -> None:
    lines = show(table, width)
    assert max(map(len, lines)) <= width
    assert [line for line in lines if line != line.rstrip()] == []
    assert (lines[0], lines[-1]) == ("Rates", "measured once")
    words = [word for row in ROWS for cell in row for word in cell.split()]
    head = ["side", "images/s", "steps", "Rates", "measured", "once"]
    assert sorted(w for w in " ".join(lines).split() if "─" not in w) == sorted([*words, *head])


def test_a_narrow_screen_has_a_line_for_each_cell(table: WordTable) -> None:
    assert show(table, 59)[:10] == [
        "Rates",
        "",
        "side: DALI on GPU",
        "images/s: 1,234 ± 56",
        "steps: random_resized_crop and random_horizontal_flip, then",
        "nothing",
        "",
        "side: cpu",
        "images/s: 987 ± 6",
        "",
    ]


def test_words_that_do_not_fit_side_by_side_are_stacked() -> None:
    names = [f"a_name_of_24_characters_{n}" for n in range(4)]
    table = WordTable("", *names)
    table.add_row("1", "2", "3", "4")
    assert show(table, 80)[1:5] == [f"{name}: {n}" for n, name in enumerate(names, 1)]


def test_a_narrow_table_without_a_head_has_a_line_for_each_row() -> None:
    table = WordTable("", "", "")
    table.add_row("images/s", "1,234 ± 56 (standard deviation of 3 passes of 8 batches)")
    assert show(table, 40)[1:] == [
        "images/s: 1,234 ± 56 (standard deviation",
        "of 3 passes of 8 batches)",
    ]


def test_where_no_line_is_too_wide_nothing_is_cut_and_the_width_is_that_of_the_content(
    table: WordTable,
) -> None:
    lines = show(table, 10**5)
    assert lines[2].split() == ["side", "images/s", "steps"]
    assert [lines[4].endswith(ROWS[0][2]), lines[5].split()] == [True, ["cpu", "987", "±", "6"]]
    assert len(lines[3]) <= len(lines[4]) + 1


def test_a_long_note_breaks_between_words_and_ends_without_spaces(table: WordTable) -> None:
    table.heading = table.note = "cannot be determined: the rounds differ by too much of the time"
    lines = show(table, 40)
    expected = ["cannot be determined: the rounds differ", "by too much of the time"]
    assert (lines[:2], lines[-2:]) == (expected, expected)
