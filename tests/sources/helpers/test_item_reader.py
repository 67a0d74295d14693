"""Items that are read once for all of their parts."""

import pickle
import threading
from typing import Any

import numpy as np
import pytest

from gpupipe.dataset.given_dataset import GivenDataset
from gpupipe.errors import EngineError
from gpupipe.sources.helpers import item_reader
from gpupipe.sources.helpers.dataset_origin import DatasetOrigin
from gpupipe.sources.helpers.item_parts import PartChoice
from gpupipe.sources.helpers.item_reader import ItemColumn, ItemReader, number_names


class Counting:
    """Counts the items that were asked for, and the threads that ask at once."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.inside = threading.Lock()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        assert self.inside.acquire(blocking=False), "another thread is inside"
        self.asked.append(index)
        self.inside.release()
        return np.full((2, 2), index, np.uint8), index


def make(dataset: Any) -> ItemReader:
    return ItemReader(DatasetOrigin(GivenDataset(dataset), {}, None), PartChoice())


def test_an_item_is_read_once_for_all_parts() -> None:
    dataset = Counting()
    reader = make(dataset)
    dataset.asked.clear()
    images = reader.read("image", [5, 2, 5])
    assert [data[0] for data in images] == [5, 2, 5]
    assert [int(data.view(np.int64)[0]) for data in reader.read("label", [2, 5])] == [2, 5]
    assert sorted(dataset.asked) == [2, 5]
    assert reader.read("label", [2])[0].view(np.int64)[0] == 2, "read again: nothing waits"
    assert sorted(dataset.asked) == [2, 2, 5]


def test_what_waits_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_reader, "_MAX_WAITING", 3 * 8)
    dataset = Counting()
    reader = make(dataset)
    reader.read("image", range(10))
    dataset.asked.clear()
    labels = reader.read("label", range(10))
    assert [int(data.view(np.int64)[0]) for data in labels] == list(range(10))
    assert sorted(dataset.asked) == list(range(7)), "the labels of 7, 8 and 9 waited"


def test_threads_take_turns() -> None:
    dataset = Counting()
    reader = make(dataset)
    threads = [
        threading.Thread(target=lambda: [reader.read("image", [n]) for n in range(40)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dataset.asked[1:].count(7) == 4


def test_a_column_that_is_pickled_finds_its_reader_in_this_process_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = make(Counting())
    column = ItemColumn(reader, "image", "", reader.parts[0].layout)
    taken = pickle.loads(pickle.dumps(column.take(np.array([7, 3]))))
    assert taken.reader is reader
    assert taken.location(1, "") == f"{__name__}:Counting[3]"
    assert taken.read(np.array([0]))[0].tolist() == [7] * 4
    data = pickle.dumps(column)
    monkeypatch.setattr(item_reader, "_READERS", {})
    with pytest.raises(EngineError, match=r"Counting is an object of one process.*'call'"):
        pickle.loads(data).read(np.array([0]))
    origin = DatasetOrigin("collections:UserList", {"initlist": [b"a", b"b"]}, None)
    named = ItemReader(origin, PartChoice())
    assert named.has_paths is False
    found = pickle.loads(pickle.dumps(named))
    assert found.dataset == named.dataset


def test_the_names_of_samples_are_their_numbers() -> None:
    names = number_names(1101)
    assert [names[n] for n in (0, 9, 10, 99, 100, 1100)] == ["0", "9", "10", "99", "100", "1100"]
