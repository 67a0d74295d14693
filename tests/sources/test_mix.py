import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.config import json_schema
from gpupipe.dataset.file_columns import FileColumn, JoinedColumn, SpanColumn
from gpupipe.errors import ConfigError, DataError, StateError
from helpers.loaders import ENGINES
from helpers.served import serving
from helpers.zip_files import png, write_zip

COUNTS = {"a": 40, "b": 10, "c": 24}
STEPS = ["decode", {"random_crop": {"size": 6}}, "random_horizontal_flip"]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Part a is a folder, b a stored archive, c a deflated one; classes cat, dog and emu."""
    root = tmp_path_factory.mktemp("mix")
    classes = {"a": ("cat", "dog"), "b": ("dog", "emu"), "c": ("ant", "dog")}
    files: dict[str, dict[str, bytes]] = {}
    for part, count in COUNTS.items():
        files[part] = {f"{classes[part][n % 2]}/{n:02}.png": png(n * 5, 12) for n in range(count)}
    for name, content in files["a"].items():
        (root / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "a" / name).write_bytes(content)
    write_zip(root / "b.zip", files["b"])
    write_zip(root / "c.zip", files["c"], 8)
    return {
        "a": {"source": "folder", "root": str(root / "a"), "weight": 2},
        "b": {"source": "zip", "shards": str(root / "b.zip"), "weight": 1},
        "c": {"source": "zip", "shards": str(root / "c.zip"), "weight": 0.5},
    }


def data_of(parts: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"source": "mix", "parts": parts} | options


def load_data(data: dict[str, Any], **options: Any) -> gpupipe.Loader:
    config = {"data": data, "pipeline": STEPS}
    defaults = {"engine": "cpu", "device": "cpu", "batch_size": 7, "ids": True}
    return gpupipe.load(config, **defaults | options)


def ids_of(loader: gpupipe.Loader) -> list[int]:
    return [i for batch in loader for i in batch["id"].tolist()]


def count_parts(ids: list[int]) -> list[int]:
    ends = np.cumsum(list(COUNTS.values()))
    return np.bincount(np.searchsorted(ends, ids, side="right"), minlength=3).tolist()


@pytest.mark.parametrize(
    ("stop", "options", "expected"),
    [
        ("first", {}, [20, 10, 5]),
        ("all", {}, [96, 48, 24]),
        ("never", {"epoch_size": 70}, [40, 20, 10]),
        ("first", {"epoch_size": 35, "shuffle": False}, [20, 10, 5]),
        ("never", {"epoch_size": 36}, [21, 10, 5]),
    ],
    ids=str,
)
def test_proportions_are_exact_in_each_epoch_and_in_each_stretch(
    sets: dict[str, Any], stop: str, options: dict[str, Any], expected: list[int]
) -> None:
    with load_data(data_of(sets, stop=stop), **options) as loader:
        assert len(loader) == -(-sum(expected) // 7)
        for _ in range(3):
            ids = ids_of(loader)
            assert count_parts(ids) == expected
            for begin in range(0, len(ids) - 14, 7):
                for found, whole in zip(
                    count_parts(ids[begin : begin + 14]), expected, strict=True
                ):
                    assert abs(found - 14 * whole / len(ids)) <= 1.5


def test_every_sample_of_a_part_comes_before_one_comes_again(sets: dict[str, Any]) -> None:
    with load_data(data_of(sets)) as loader:
        epochs = [ids_of(loader) for _ in range(24)]
    counts = Counter(i for ids in epochs for i in ids)
    for first, count, times in ((0, 40, 12), (40, 10, 24), (50, 24, 5)):
        assert {counts[i] for i in range(first, first + count)} == {times}
    once = Counter(i for ids in epochs[:2] for i in ids)
    assert {once[i] for i in range(40)} == {1}, "20 of 40 an epoch: all 40 in two"
    assert len({tuple(ids) for ids in epochs}) == 24


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_law_1_draws_do_not_depend_on_engine_batch_or_rank(
    sets: dict[str, Any], options: dict[str, Any]
) -> None:
    """Also of samples that come several times in an epoch."""
    data = data_of(sets, stop="all")

    def images(loader: gpupipe.Loader) -> Counter[tuple[int, bytes]]:
        return Counter(
            (i, image.numpy().tobytes())
            for batch in loader
            for i, image in zip(batch["id"].tolist(), batch["image"], strict=True)
        )

    with load_data(data, batch_size=1) as loader:
        alone = images(loader)
    assert max(Counter(i for i, _ in alone.elements()).values()) > 2
    with load_data(data, **options, batch_size=25) as loader:
        assert images(loader) == alone
    shared: Counter[tuple[int, bytes]] = Counter()
    for rank in range(3):
        with load_data(data, **options, shard={"rank": rank, "world_size": 3}) as loader:
            shared += images(loader)
    assert shared == alone


def test_law_2_with_sizes_as_weights_every_sample_comes_once(sets: dict[str, Any]) -> None:
    parts = {name: part | {"weight": COUNTS[name]} for name, part in sets.items()}
    for stop in ("first", "all"):
        every: list[int] = []
        for rank in range(3):
            shard = {"rank": rank, "world_size": 3}
            with load_data(data_of(parts, stop=stop), shard=shard) as loader:
                every += ids_of(loader)
        assert sorted(every) == list(range(sum(COUNTS.values())))


def test_a_state_continues_in_the_middle_of_an_epoch(sets: dict[str, Any]) -> None:
    with load_data(data_of(sets)) as loader:
        loader.sampler.set_epoch(3)
        iterator = iter(loader)
        next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [batch["image"] for batch in iterator] + [batch["image"] for batch in loader]
    with load_data(data_of(sets)) as loader:
        loader.load_state_dict(state)
        again = [batch["image"] for batch in loader] + [batch["image"] for batch in loader]
    assert all(torch.equal(a, b) for a, b in zip(rest, again, strict=True))
    other = {name: part | {"weight": 1} for name, part in sets.items()}
    for data in (data_of(other), data_of(sets, stop="all")):
        with (
            load_data(data) as loader,
            pytest.raises(StateError, match=r"the mixture 'a 2, b 1, c 0\.5"),
        ):
            loader.load_state_dict(state)


def test_classes_are_joined_by_name_or_kept(sets: dict[str, Any]) -> None:
    with load_data(data_of(sets, origin="part")) as loader:
        index = loader.index
        assert index.classes == ["cat", "dog", "emu", "ant"]
        assert np.bincount(index.labels).tolist() == [20, 20 + 5 + 12, 5, 12]
        for batch in loader:
            starts = np.array([0, 40, 50])[batch["part"].numpy()]
            assert ((batch["id"].numpy() - starts) >= 0).all()
    with load_data(data_of(sets, classes="keep")) as loader:
        assert loader.index.classes == ["a/cat", "a/dog", "b/dog", "b/emu", "c/ant", "c/dog"]


def test_classes_that_are_kept_are_other_data_for_a_state(sets: dict[str, Any]) -> None:
    """Also where no class changes its number or name, as with one part of its own."""
    one = {"b": sets["b"]}
    with load_data(data_of(one)) as loader, load_data(data_of(one, classes="keep")) as kept:
        assert loader.index.labels.tolist() == kept.index.labels.tolist()
        assert loader.state_dict()["data"] != kept.state_dict()["data"]


def test_columns_of_one_kind_stay_of_that_kind(sets: dict[str, Any]) -> None:
    a, b, c = sets.values()
    kinds = [({"x": a, "y": a}, FileColumn), ({"x": b, "y": b}, SpanColumn)]
    for parts, kind in [*kinds, ({"x": a, "y": b, "z": c}, JoinedColumn)]:
        with load_data(data_of(parts)) as loader:
            column = loader.index.columns["image"]
            assert type(column) is kind
            alone = [load_data(part_without_weight(part)).index for part in parts.values()]
            every = [(i, index) for index in alone for i in range(len(index))]
            assert len(column) == len(every)
            contents = column.read(np.arange(len(column))[::-1])[::-1]
            for n, (i, index) in enumerate(every):
                assert contents[n].tobytes() == index.read(i).tobytes()
                assert loader.index.location(n) == index.location(i)
            few = loader.index.subset(np.array([len(every) - 1, 0]))
            assert few.read(0).tobytes() == contents[-1].tobytes()


def part_without_weight(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "weight"}


def test_a_subset_keeps_the_proportions(sets: dict[str, Any]) -> None:
    with load_data(data_of(sets), subset=0.5) as loader:
        ids = ids_of(loader)
        assert count_parts(ids)[:2] == [2 * count_parts(ids)[1], count_parts(ids)[1]]
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rot": 1}, "data.parts.a: rot: unknown key; did you mean 'root'"),
        ({"source": "fodler"}, "data.parts.a: unknown source 'fodler'; did you mean 'folder'"),
        ({"source": 3}, "should be a source"),
        ({"source": "mix"}, "a mix cannot be a part of a mix"),
        ({"masks": ["image"]}, "masks: it is the same for all parts"),
        ({"weight": 0}, "weight: "),
        ({"source": "remote"}, "'remote' has other samples in each epoch"),
        ({"extensions": 7}, "data.parts.a: extensions: "),
    ],
    ids=str,
)
def test_a_wrong_part_is_named(sets: dict[str, Any], change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_data(data_of(sets | {"a": sets["a"] | change}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": "class_balanced"}, "loader.weights: the proportions of a mixed data set"),
        ({"repeats": 2}, "loader.repeats: the proportions"),
        ({"epoch_size": "all"}, "loader.epoch_size: the proportions"),
    ],
    ids=str,
)
def test_settings_that_say_otherwise_are_refused(
    sets: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load_data(data_of(sets), **options)


def test_what_does_not_fit_together(sets: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.stop is never: say how many samples"):
        load_data(data_of(sets, stop="never"))
    small = sets | {"b": sets["b"] | {"weight": 1e-6}}
    with pytest.raises(DataError, match=r"data\.parts\.b\.weight: so small"):
        load_data(data_of(small), epoch_size=100)
    np.save(tmp_path / "x.npy", np.zeros((4, 3, 8, 8), np.uint8))
    arrays = {"source": "numpy", "files": str(tmp_path / "x.npy"), "rows": True}
    with pytest.raises(DataError, match=r"data\.parts\.n: its fields are"):
        load_data(data_of({"a": sets["a"], "n": arrays}))
    (tmp_path / "list.csv").write_text("path,label,w\nx.png,a,1\n")
    listed = {"source": "file_list", "file": str(tmp_path / "list.csv"), "values": ["w"]}
    with pytest.raises(DataError, match=r"data\.parts\.a: it has no value 'w', but l has"):
        load_data(data_of({"a": sets["a"], "l": listed}))


def test_labels_are_of_all_parts_or_of_none(sets: dict[str, Any]) -> None:
    bare = {name: part | {"label": None} for name, part in sets.items()}
    with load_data(data_of(bare)) as loader:
        assert (loader.index.classes, loader.index.has_labels) == ([], False)
        assert "label" not in next(iter(loader))
    with pytest.raises(DataError, match=r"data\.parts\.b: .* no label, but those of a have"):
        load_data(data_of(sets | {"b": bare["b"]}))


@pytest.fixture
def server(sets: dict[str, Any]) -> Iterator[str]:
    config = {"data": data_of(sets, stop="all"), "pipeline": STEPS}
    with serving(config, {"device": "cpu", "batch_size": 7}) as server:
        yield server.address


def test_a_server_delivers_the_same(sets: dict[str, Any], server: str) -> None:
    data = data_of(sets, stop="all")
    with load_data(data) as own, gpupipe.connect(server, ids=True) as served:
        assert len(own) == len(served)
        for a, b in zip(own, served, strict=True):
            assert all(torch.equal(a[name], b[name]) for name in ("image", "label", "id"))


def test_the_schema_has_the_parts() -> None:
    definitions = json_schema.make_schema("config")["$defs"]
    parts = definitions["source.mix"]["properties"]["parts"]
    assert parts["additionalProperties"]["required"] == ["source"]


def test_arrays_of_one_shape_and_of_others(tmp_path: Path) -> None:
    for name, side in (("x", 5), ("y", 5), ("z", 7)):
        np.save(tmp_path / f"{name}.npy", np.full((6, 3, side, side), side, np.uint8))
    parts = {
        n: {"source": "numpy", "files": str(tmp_path / f"{n}.npy"), "rows": True} for n in "xyz"
    }
    same = {"data": data_of({n: parts[n] for n in "xy"}), "pipeline": []}
    with gpupipe.load(same, device="cpu", batch_size=4) as loader:
        assert sum(len(batch["array"]) for batch in loader) == 12
    with pytest.raises(DataError, match=r"data\.parts\.z: its fields are"):
        gpupipe.load({"data": data_of(parts), "pipeline": []}, device="cpu", batch_size=3)
