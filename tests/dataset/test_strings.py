"""Many strings in one array."""

from __future__ import annotations

import numpy as np

from gpupipe.dataset.strings import StringArray

STRINGS = ["a/b.jpg", "", "größe.png", "\udcff.jpg", "x" * 300]


def test_strings_come_out_as_they_went_in() -> None:
    """Also names that are no UTF-8, as a file system has them."""
    strings = StringArray.from_strings(STRINGS)
    assert len(strings) == len(STRINGS)
    assert [strings[i] for i in range(len(strings))] == STRINGS
    assert not len(StringArray.from_strings([]))


def test_chosen_rows_in_their_order() -> None:
    taken = StringArray.from_strings(STRINGS).take(np.array([3, 0, 3]))
    assert [taken[i] for i in range(3)] == [STRINGS[3], STRINGS[0], STRINGS[3]]


def test_padding_ends_each_string_with_nul() -> None:
    padded = StringArray.from_strings(["ab", "", "cde"]).pad(np.array([2, 0, 1]), b"/r/")
    assert [row.tobytes() for row in padded] == [b"/r/cde", b"/r/ab\0", b"/r/\0\0\0"]


def test_where_a_string_ends_is_part_of_the_fingerprint() -> None:
    one, other = (StringArray.from_strings(s) for s in (["ab", "c"], ["a", "bc"]))
    parts = zip(one.fingerprint_parts, other.fingerprint_parts, strict=True)
    assert [np.array_equal(a, b) for a, b in parts] == [True, False]
