"""Lines of text that fit a screen."""

import pytest

from gpupipe.runtime.text import find_lines, wrap_words

TEXT = "Clamp boxes to the image, as torchvision.transforms.v2.ClampBoundingBoxes. Then stop"


@pytest.mark.parametrize("width", [12, 30, 40, 59])
def test_lines_hold_all_words_and_break_words_after_a_separator_alone(width: int) -> None:
    lines = [TEXT[part] for part in find_lines(TEXT, width, folds=True)]
    assert max(map(len, lines)) <= width
    assert "".join(lines).replace(" ", "") == TEXT.replace(" ", "")
    if width > 20:  # ClampBoundingBoxes fits
        assert all(line.endswith(("2.", "s")) or TEXT.count(f"{line} ") for line in lines[:-1])


def test_a_long_word_is_a_line_of_its_own_unless_it_folds() -> None:
    text = f"aaaaa {'b' * 25} c"
    assert wrap_words(text, 10) == ["aaaaa", "b" * 25, "c"]
    parts = [text[part] for part in find_lines(text, 10, folds=True)]
    assert parts == ["aaaaa", "b" * 10, "b" * 10, "bbbbb c"]


def test_what_fits_is_left_alone() -> None:
    assert wrap_words("", 10) == [""]
    assert wrap_words("1234567890", 10) == ["1234567890"]
    assert wrap_words("12345 7890 1", 10) == ["12345 7890", "1"]


def test_each_line_keeps_its_indentation() -> None:
    text = "one two\n  three four five\n- sixty seven"
    lines = ["one two", "  three", "  four five", "- sixty", "  seven"]
    assert wrap_words(text, 11) == lines
