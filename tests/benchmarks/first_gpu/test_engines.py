import pytest


@pytest.mark.parametrize(
    ("cores", "expected"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (16, [1, 2, 4, 8, 16])]
)
def test_the_numbers_of_cores_double(cores: int, expected: list[int]) -> None:
    from first_gpu import engines

    assert engines.steps(cores) == expected
