"""Settings of loader: that choose samples."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import gpupipe
from gpupipe import config as configs
from gpupipe.dataset.index import build
from gpupipe.loading.sample_selection import balance_classes, choose_share, select_samples
from helpers.loaders import load

CLASSES = [0] * 12 + [1] * 6 + [2] * 2


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 gray squares in classes of 12, 6 and 2, with columns of numbers."""
    root = tmp_path_factory.mktemp("table")
    rows = ["path,label,w,negative,nothing,gap"]
    for n, label in enumerate(CLASSES):
        Image.new("L", (8, 8), n).save(root / f"{n}.png")
        rows.append(f"{n}.png,{label},{n % 3},{n - 7},0,{'nan' if n == 4 else 1.5}")
    (root / "table.csv").write_text("\n".join(rows) + "\n")
    return root / "table.csv"


def opened(table: Path, **options: Any) -> gpupipe.Loader:
    values = ["w", "negative", "nothing", "gap"]
    data = {"source": "file_list", "file": table, "values": values}
    return load(None, data=data, **{"batch_size": 3, **options})


def ids(loader: gpupipe.Loader) -> list[int]:
    batches = [batch["id"].tolist() for batch in loader]
    assert len(batches) == len(loader)
    return [i for batch in batches for i in batch]


def test_repeats(table: Path) -> None:
    with opened(table, repeats=4) as loader:
        assert loader.sampler.epoch_size == 20
        epochs = [ids(loader) for _ in range(4)]
    assert all(len(epoch) == 20 for epoch in epochs)
    assert all(set(Counter(epoch).values()) == {4} for epoch in epochs)
    assert Counter(i for epoch in epochs for i in epoch) == dict.fromkeys(range(20), 4)
    with opened(table, repeats=4, epoch_size="all") as loader:
        assert Counter(ids(loader)) == dict.fromkeys(range(20), 4)


def test_a_weighted_epoch_has_no_sample_of_weight_0(table: Path) -> None:
    with opened(table, weights="w", epoch_size=3000) as loader:
        counts = Counter(ids(loader))
    assert counts.total() == 3000
    assert set(counts) == {n for n in range(20) if n % 3}
    twos = sum(counts[n] for n in range(20) if n % 3 == 2)
    assert abs(twos / 3000 - 12 / 19) < 0.05, "6 samples of weight 2, and 7 of weight 1"


def test_balanced_classes(table: Path) -> None:
    with opened(table, weights="class_balanced", epoch_size=3000) as loader:
        counts = Counter(CLASSES[i] for i in ids(loader))
    assert all(abs(counts[label] - 1000) < 130 for label in range(3)), "1000 +- 26"


def test_a_share_keeps_classes_ids_and_draws(table: Path) -> None:
    with opened(table, subset=0.5, batch_size=1) as loader:
        part = {int(b["id"]): int(b["image"].flatten()[0]) for b in loader}
        assert len(loader.index) == 20
    assert Counter(CLASSES[i] for i in part) == {0: 6, 1: 3, 2: 1}
    assert part == {i: i for i in part}, "an id is the row in the index"
    with opened(table, subset=0.5, seed=1) as loader:
        assert set(ids(loader)) != set(part)


def test_a_file_of_ids(table: Path, tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("7\n0\n19\n4\n")
    with opened(table, subset=file, shuffle=False) as loader:
        assert ids(loader) == [0, 4, 7, 19]
        state = loader.state_dict()
        assert state["subset"].startswith("4 ids, ")
    file.write_text("7\n0\n19\n5\n")
    another = pytest.raises(gpupipe.StateError, match=r"set loader\.subset to the file with these")
    with opened(table, subset=file, shuffle=False) as loader, another:
        loader.load_state_dict(state)
    file.write_text("3\ntwo\n")
    with pytest.raises(gpupipe.DataError, match=rf"{file}:2: 'two' is no id"):
        opened(table, subset=file)


def test_a_state_of_before_the_settings_were_there_loads(table: Path) -> None:
    with opened(table) as loader:
        state = loader.state_dict()
        assert not state.keys() & {"repeats", "weights", "epoch_size", "subset"}
    with opened(table, repeats=2) as loader:
        with pytest.raises(gpupipe.StateError, match=r"repeats 1, .* repeats 2: set loader\.rep"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, strict=False)


def test_the_repr_has_the_size_of_an_epoch(table: Path) -> None:
    with opened(table, epoch_size=50) as loader:
        assert "17 an epoch" in repr(loader)
        assert "0 of 50 samples delivered" in repr(loader)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"weights": "v"},
            gpupipe.ConfigError,
            r"loader\.weights: the samples have no numbers called 'v'.*class_balanced",
        ),
        ({"weights": "negativ"}, gpupipe.ConfigError, "did you mean 'negative'"),
        (
            {"weights": "negative"},
            gpupipe.DataError,
            r"/0\.png: its 'negative' is -7, and loader\.weights needs finite numbers from 0",
        ),
        ({"weights": "gap"}, gpupipe.DataError, r"/4\.png: its 'gap' is nan"),
        (
            {"weights": "nothing"},
            gpupipe.DataError,
            r"loader\.weights: the sum of 'nothing' over all samples is 0",
        ),
        (
            {"weights": "w", "shuffle": False},
            gpupipe.ConfigError,
            "weights draws samples at random, and shuffle is false: set shuffle: true",
        ),
        ({"epoch_size": 0}, gpupipe.ConfigError, "epoch_size is 0, but should be .*at least 1"),
        ({"epoch_size": "whole"}, gpupipe.ConfigError, "epoch_size is 'whole'"),
        ({"repeats": 0}, gpupipe.ConfigError, "repeats is 0, but should be at least 1"),
        ({"repeats": 1.5}, gpupipe.ConfigError, "repeats is 1.5, but should be a whole number"),
        ({"repeats": True}, gpupipe.ConfigError, "repeats is true, but should be a whole number"),
        *(
            ({"subset": value}, gpupipe.ConfigError, "should be a share above 0 and up to 1, or")
            for value in (0, 1.5, -0.1, True, "", [0.1])
        ),
        ({"subset": "/nowhere"}, gpupipe.DataError, "/nowhere: cannot be read: No such file"),
        (
            {"epoch_size": 5, "last_batch": "drop", "batch_size": 6},
            gpupipe.ConfigError,
            "5 samples cannot give 1 rank a full batch of 6",
        ),
    ],
    ids=str,
)
def test_settings_that_are_refused(
    table: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        opened(table, **options)


def test_balanced_classes_need_labels() -> None:
    data = {"source": "folder", "root": "/x"}
    config = configs.read({"data": data, "pipeline": ["decode"]}, weights="class_balanced")
    for labels in ([0, 0], [3, 3]):
        index = build("/x", ["a", "b"], np.array(labels), ["c"])
        with pytest.raises(gpupipe.ConfigError, match="needs at least 2 classes, and all samples"):
            select_samples(config, index)


def test_a_column_with_several_numbers_a_sample_is_no_weight() -> None:
    index = build("/x", ["a", "b"], np.zeros(2, np.int64), ["c"], values={"box": np.ones((2, 4))})
    data = {"source": "folder", "root": "/x"}
    config = configs.read({"data": data, "pipeline": ["decode"]}, weights="box")
    with pytest.raises(gpupipe.ConfigError, match=r"'box' has \(4,\) numbers a sample"):
        select_samples(config, index)


SPLIT = {"train": 0.75, "val": 0.25}


def test_the_parts_of_a_split_share_classes_and_no_sample(table: Path) -> None:
    found = {}
    for part in SPLIT:
        with opened(table, split=SPLIT, subset=part, seed=len(part)) as loader:
            found[part] = sorted(ids(loader))
            assert loader.index.classes == ["0", "1", "2"]
    assert sorted(found["train"] + found["val"]) == list(range(20))
    counts = {part: Counter(CLASSES[i] for i in rows) for part, rows in found.items()}
    assert counts["val"] == {0: 3, 1: 2}, "a quarter of 12, of 6 (1.5, halves to even) and of 2"
    assert not {tuple(found["val"][:3])} & {(0, 1, 2), (9, 10, 11)}, "drawn, not cut off at an end"
    with opened(table, split=SPLIT, subset="val", seed=9) as loader:
        assert sorted(ids(loader)) == found["val"], "whatever the seed"


def test_a_state_of_one_part_does_not_load_in_the_other(table: Path) -> None:
    with opened(table, split=SPLIT, subset="train") as loader:
        state = loader.state_dict()
        assert state["subset"].startswith("train, 15 ids, ")
        loader.load_state_dict(state)
    with (
        opened(table, split=SPLIT, subset="val") as loader,
        pytest.raises(gpupipe.StateError, match="subset"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("split", "subset", "words"),
    [
        (SPLIT, None, "split has the parts train and val: set subset to the one to load"),
        (SPLIT, "test", "split has the parts train and val"),
        ({"train": 0.9, "val": 0.2}, "val", "at most 1 in all"),
        ({"train": 0, "val": 0.2}, "val", "should be parts by name"),
        (["train"], "train", "should be parts by name"),
        ({}, "train", "should be parts by name"),
    ],
    ids=str,
)
def test_splits_that_cannot_be(table: Path, split: Any, subset: Any, words: str) -> None:
    with pytest.raises(gpupipe.ConfigError, match=words):
        opened(table, split=split, subset=subset)


def test_a_part_without_a_sample_is_an_error(table: Path) -> None:
    with pytest.raises(gpupipe.ConfigError, match=r"no sample is in .val.*larger, such as 0\.\d"):
        opened(table, split={"train": 0.99, "val": 0.01}, subset="val")


LABELS = st.lists(st.integers(-1, 6), min_size=1, max_size=80).map(lambda n: np.array(n, np.int64))
SHARES = st.floats(0.001, 1.0)


@given(LABELS, SHARES, st.integers(0, 2**63 - 1))
def test_a_share_is_of_each_class(labels: np.ndarray, share: float, seed: int) -> None:
    rows = choose_share(share, labels, seed)
    assert rows.dtype == np.int64
    assert (np.diff(rows) > 0).all()
    for label in np.unique(labels):
        size = (labels == label).sum()
        assert (labels[rows] == label).sum() == max(1, np.rint(share * size))


@given(LABELS, SHARES, SHARES)
def test_a_larger_share_contains_a_smaller(labels: np.ndarray, one: float, other: float) -> None:
    small, large = (set(choose_share(s, labels, 7).tolist()) for s in sorted((one, other)))
    assert small <= large


def test_shares_are_drawn_by_the_seed_and_uniformly() -> None:
    labels = np.arange(40) % 2
    counts = np.zeros(40)
    for seed in range(2000):
        counts[choose_share(0.25, labels, seed)] += 1
    assert counts.sum() == 20_000
    assert ((counts - 500) ** 2 / (500 * 0.75)).sum() < 85, "about 38 degrees of freedom: 38 +- 9"


def test_balanced_classes_are_equally_likely() -> None:
    labels = np.array([5, 5, 5, 0, 2, 2])
    weights = balance_classes(labels)
    assert [weights[labels == n].sum() for n in (0, 2, 5)] == [1.0, 1.0, 1.0]
    rows = np.array([0, 3, 4, 5])
    weights = balance_classes(labels, rows)
    assert [weights[rows][labels[rows] == n].sum() for n in (0, 2, 5)] == [1.0, 1.0, 1.0]
