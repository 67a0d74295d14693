"""Numbers in the braces of patterns, and indexes beside shards."""

import pytest

from gpupipe.dataset.braces import expand_braces, leave_out_indexes
from gpupipe.errors import DataError


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.tar", ["a.tar"]),
        ("a{8..10}", ["a8", "a9", "a10"]),
        ("a{008..010}", ["a008", "a009", "a010"]),
        ("{0..1}/{2..3}", ["0/2", "0/3", "1/2", "1/3"]),
    ],
)
def test_each_number_is_a_pattern(pattern: str, expected: list[str]) -> None:
    assert expand_braces(pattern) == expected


@pytest.mark.parametrize("pattern", ["s-{5..2}", "s-{0..1000000}"])
def test_numbers_count_upwards_and_not_too_far(pattern: str) -> None:
    with pytest.raises(DataError, match=r"s-\{.*\} should count upwards, to at most 1,000,000"):
        expand_braces(pattern)


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["a.idx", "a.tar", "b.tar", "b.tar.idx"], ["a.tar", "b.tar"]),
        (["s/t-00000-of-2", "s/t-00000-of-2.idx"], ["s/t-00000-of-2"]),
        (["a.idx", "b.tar", "c/a.tar"], ["a.idx", "b.tar", "c/a.tar"]),
        (["a.idx", "a.b/c", "a.idx/d"], ["a.idx", "a.b/c", "a.idx/d"]),
    ],
)
def test_an_index_is_no_shard_if_its_shard_is_there(names: list[str], kept: list[str]) -> None:
    assert leave_out_indexes(names) == kept
