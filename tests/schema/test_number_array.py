"""Arrays of numbers in a config: lists and .npy files."""

from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest

from gpupipe.schema.number_array import Matrix, NumberArray, Vector


class Numbers(pydantic.BaseModel):
    """Parameters of a step that takes a vector and a matrix."""

    vector: Vector | None = None
    matrix: Matrix | None = None


def read(**parameters: Any) -> NumberArray:
    numbers = Numbers.model_validate(parameters)
    found = numbers.vector if numbers.matrix is None else numbers.matrix
    assert isinstance(found, NumberArray)
    return found


def test_a_list_is_float32_and_written_as_it_was() -> None:
    array = read(matrix=[[1, 2.5], [3, 4], [5, 6]])
    assert (array.dtype, array.shape, array.path) == ("float32", (3, 2), "")
    assert array.values.tolist() == [[1, 2.5], [3, 4], [5, 6]]
    assert Numbers(matrix=array).model_dump()["matrix"] == [[1, 2.5], [3, 4], [5, 6]]
    assert repr(array) == "3x2 float32"


def test_a_file_keeps_its_dtype_and_is_written_as_its_path(tmp_path: Path) -> None:
    path = str(tmp_path / "mean.npy")
    np.save(path, np.array([0.1, 0.2]))
    array = read(vector=path)
    assert (array.dtype, array.values.tolist(), repr(array)) == ("float64", [0.1, 0.2], path)
    assert Numbers(vector=array).model_dump()["vector"] == path


def test_equal_numbers_are_equal_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "mean.npy"
    np.save(path, np.array([1, 2], ">f4"))
    array, other = read(vector=str(path)), read(vector=[1, 2])
    assert array == other
    assert hash(array) == hash(other)
    assert array != read(vector=[1, 3])
    assert array != read(matrix=[[1, 2]])
    np.save(path, np.array([1.0, 2.0]))
    assert array != read(vector=str(path)), "float64"


def test_json_has_a_hash_from_which_a_client_knows_all_but_the_numbers() -> None:
    array = read(vector=[1, 2])
    description = Numbers(vector=array).model_dump(mode="json")["vector"]
    assert description == {"dtype": "float32", "shape": [2], "hash": array.digest}
    received = read(vector=description)
    assert received == array
    with pytest.raises(LookupError, match="are on the server"):
        _ = received.values


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1, [2]], "rows have different lengths"),
        ([[1, 2]], "a list of numbers, or the path of an .npy file"),
        ("mean.npz", "a list of numbers, or the path"),
        ([True, False], "a list of numbers, or the path"),
        ([], "has the shape"),
        ([1e300], r"number at \[0\] is not finite in float32"),
        (["x"], "a list of numbers, or the path"),
        ({"dtype": "int8", "shape": [1], "hash": ""}, "a list of numbers, or the path"),
        ("/nowhere/mean.npy", "cannot be read: No such file"),
    ],
    ids=str,
)
def test_what_is_no_vector_is_refused(value: Any, words: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=words):
        read(vector=value)


def test_files_of_other_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mean.npy"
    for array, words in (
        (np.arange(3), r"int64, but should be float32 or float64: .*astype\('float32'\)"),
        (np.ones((2, 2), np.float32), "needs 1 axes"),
        (np.array([1, np.nan], np.float32), r"number at \[1\] is not finite"),
        (np.array([None]), "is no .npy file of numbers"),
    ):
        np.save(path, array)
        with pytest.raises(pydantic.ValidationError, match=words):
            read(vector=str(path))
    path.write_bytes(b"")
    with pytest.raises(pydantic.ValidationError, match=r"is no \.npy file of numbers"):
        read(vector=str(path))
