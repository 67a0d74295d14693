"""What is a data set, and what it is called."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.dataset.given_dataset import (
    GivenDataset,
    count_items,
    describe_value,
    fingerprint_dataset,
    is_dataset,
)
from gpupipe.errors import DataError


class Marked:
    """A data set with a fingerprint of its own."""

    _fingerprint = "5eed"

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("value", ["lfw", b"lfw", Path("lfw"), {"data": {}}, 3, None, list])
def test_names_and_configs_are_no_data_sets(value: Any) -> None:
    assert not is_dataset(value)


@pytest.mark.parametrize("value", [[], (1,), np.zeros(3), torch.zeros(3), iter([])])
def test_whatever_has_items_may_be_one(value: Any) -> None:
    assert is_dataset(value)


def test_a_data_set_is_identified_by_name_length_and_fingerprint() -> None:
    name = GivenDataset(Marked()).name
    assert name == f"{__name__}:Marked"
    assert fingerprint_dataset(Marked(), name, 7) == f"{name} 7 5eed"
    assert fingerprint_dataset([1], GivenDataset([1]).name, 1) == "list 1"


def test_a_length_that_is_none_is_named() -> None:
    with pytest.raises(DataError, match="Marked: it is a Marked without __getitem__"):
        count_items(Marked(), "Marked")
    with pytest.raises(DataError, match=r"its len\(\) raised TypeError: len\(\) of a 0-d tensor"):
        count_items(torch.zeros(()), "Tensor")


def test_values_are_described_with_their_shape() -> None:
    assert describe_value(np.zeros((2, 3), np.uint8)) == "a ndarray (2, 3) of uint8"
    assert describe_value(torch.zeros(4)) == "a Tensor (4,) of float32"
    assert describe_value("x") == "a str 'x'"
    assert describe_value(None) == "a NoneType"
