"""Data sets of the user's own: what items may be, what is known of them, and what is refused."""

import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe.sources.helpers.item_reader import ItemColumn, ItemReader
from helpers import user_datasets
from helpers.reference import by_id
from helpers.small_images import shrink_all
from helpers.user_datasets import Batched, Drawing, Faces, Faulty, Lying, Stream

ENGINES = ["cpu", "dali", "dataloader"]
DECODE: Sequence[Any] = ("decode",)


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("datasets") / "faces", 40)


def load(dataset: Any, pipeline: Sequence[Any] = DECODE, **options: Any) -> gpupipe.Loader:
    settings = {"device": "cpu", "ids": True, "engine": "cpu", "batch_size": 16, **options}
    return gpupipe.load(dataset, pipeline=list(pipeline), **settings)


@pytest.fixture(scope="module")
def expected(root: Path) -> dict[int, torch.Tensor]:
    """The pixels of the files as the source folder has them, in the same order."""
    with load({"data": {"source": "folder", "root": root}}) as loader:
        return by_id(loader)


def assert_delivers(
    loader: gpupipe.Loader, images: dict[int, torch.Tensor], has_labels: bool = True
) -> None:
    count = 0
    with loader:
        for batch in loader:
            for n, id in enumerate(batch["id"].tolist()):
                assert torch.equal(batch["image"][n], images[id])
                assert not has_labels or int(batch["label"][n]) == id % 7
                count += 1
    assert count == len(images)


@pytest.mark.parametrize(
    ("engine", "form"),
    [("cpu", "bytes"), ("cpu", "path"), ("cpu", "pillow"), ("dali", "pillow"), ("dali", "dict")],
)
def test_items_with_images_are_decoded(
    root: Path, expected: dict[int, torch.Tensor], engine: str, form: str
) -> None:
    assert_delivers(load(Faces(root, form), engine=engine), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_and_tensors_go_through_the_steps_as_they_are(
    root: Path, expected: dict[int, torch.Tensor], engine: str
) -> None:
    assert_delivers(load(Faces(root, "tensor"), [], engine=engine), expected)
    rows = {id: image.permute(1, 2, 0) for id, image in expected.items()}
    assert_delivers(load(Faces(root, "array"), [], engine=engine), rows)


def test_lists_are_data_sets_whose_labels_are_known(
    root: Path, expected: dict[int, torch.Tensor]
) -> None:
    every = Faces(root).paths
    paths: list[Any] = [str(path) for path in every]
    assert_delivers(load(paths), expected, has_labels=False)
    with load(list(zip(paths, [p.parent.name for p in every], strict=True))) as loader:
        assert loader.index.classes == sorted({p.parent.name for p in every})
        assert loader.index.location(3) == paths[3]
    pairs = [(path.read_bytes(), n % 7) for n, path in enumerate(every)]
    with load(pairs, weights="class_balanced", epoch_size=700) as loader:
        drawn = torch.cat([batch["label"] for batch in loader]).bincount()
        assert len(drawn) == 7
        assert drawn.min() > 60
    assert_delivers(load(pairs), expected)


def test_labels_that_are_known_are_not_kept_with_each_item_that_is_read(root: Path) -> None:
    items = [{"photo": path.read_bytes(), "label": 1} for path in Faces(root).paths[:2]]
    with load(items) as loader:
        next(iter(loader))
        column = loader.index.columns["photo"]
        assert isinstance(column, ItemColumn)
        assert isinstance(column.reader, ItemReader)
        assert [part.name for part in column.reader.parts] == ["photo"]


def test_items_may_be_read_many_at_a_time(
    root: Path, expected: dict[int, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batched, "calls", 0)
    assert_delivers(load(Batched(root), threads=1, batch_size=60), expected)
    assert 1 <= Batched.calls < 30, "60 items, whose labels are read with their images"


def test_images_may_differ_in_size_mode_and_form() -> None:
    colors = np.arange(9 * 5 * 3, dtype=np.uint8).reshape(9, 5, 3)
    gray = np.arange(40, dtype=np.uint8).reshape(5, 8)
    file = io.BytesIO()
    Image.fromarray(colors).save(file, "PNG")
    deep = Image.fromarray(gray.astype(np.uint16) * 257)
    items = [
        {"img": Image.fromarray(colors)},
        {"img": {"bytes": file.getvalue(), "path": None}},
        {"img": Image.fromarray(gray)},
        {"img": Image.fromarray(colors).convert("RGBA")},
        {"img": deep},
    ]
    with load(items, shapes="list", shuffle=False) as loader:
        (batch,) = loader
    stacked = torch.from_numpy(gray).expand(3, -1, -1)
    wanted = [torch.from_numpy(colors).permute(2, 0, 1)] * 2 + [stacked]
    wanted += [wanted[0], stacked]
    assert all(torch.equal(a, b) for a, b in zip(batch["img"], wanted, strict=True))


def test_fields_and_label_choose_the_parts_of_items() -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    items = [
        {"id": n, "text": "a", "photo": pixels + n, "breed": n % 3, "age": 1} for n in range(6)
    ]
    data = {"fields": {"image": "photo", "years": "age"}, "label": "breed"}
    with load(items, [], shuffle=False, data=data, batch_size=6) as loader:
        (batch,) = loader
    assert batch.keys() == {"image", "years", "label", "id"}
    assert batch["label"].tolist() == [0, 1, 2, 0, 1, 2]
    assert batch["image"].shape == (6, 4, 4, 3)
    with load(items, [], data={"fields": {"x": "photo"}, "label": None}) as loader:
        assert next(iter(loader)).keys() == {"x", "id"}


def test_labels_that_come_with_their_items_can_be_mixed_and_delivered_as_a_tuple(
    root: Path,
) -> None:
    to_float = {"to_dtype": {"dtype": "float32", "scale": True}}
    batch: Any = [{"mixup": {"num_classes": 7}}]
    with load(Faces(root), ["decode", to_float], batch=batch) as loader:
        assert next(iter(loader))["label"].shape == (16, 7)
    with load(Faces(root), format="tuple") as loader:
        assert next(iter(loader))[1].dtype == torch.int64
    with pytest.raises(gpupipe.ConfigError, match=r"mixup cannot stand here.*write num_classes"):
        load(Faces(root), ["decode", to_float], batch=[{"mixup": {}}])
    with (
        load(Faces(root), ["decode", to_float], batch=[{"mixup": {"num_classes": 5}}]) as loader,
        pytest.raises(gpupipe.ShapeError, match=r"a sample has the label 6, but labels are 0 to 4"),
    ):
        list(loader)


def test_a_yaml_names_a_class_or_a_function_beside_it(root: Path, tmp_path: Path) -> None:
    code = Path(user_datasets.__file__).read_text()
    (tmp_path / "beside_yaml.py").write_text(code)
    text = (
        "data: {source: python, call: 'beside_yaml:%s', args: {root: '%s'}}\npipeline: [decode]\n"
    )
    for call in ("Faces", "make_faces"):
        (tmp_path / "train.yaml").write_text(text % (call, root))
        with gpupipe.load(tmp_path / "train.yaml", device="cpu") as loader:
            assert len(loader.index) == 60
            assert next(iter(loader))["label"].shape == (60,)
            assert loader.index.location(3).endswith(f"{call}[3]")
    for call, said in {
        "Nothing": "module beside_yaml has no 'Nothing'",
        "Stream": r"TypeError: Stream\(\) takes no arguments",
    }.items():
        (tmp_path / "train.yaml").write_text(text % (call, root))
        with pytest.raises(gpupipe.DataError, match=f"data.call: .*{said}"):
            gpupipe.load(tmp_path / "train.yaml", device="cpu")


def test_data_sets_are_mixed(root: Path, tmp_path: Path) -> None:
    code = Path(user_datasets.__file__).read_text()
    (tmp_path / "beside_mix.py").write_text(code)
    part = f"{{source: python, call: 'beside_mix:Faces', args: {{root: '{root}'}}"
    text = f"data: {{source: mix, parts: {{a: {part}}}, b: {part}, weight: 2}}}}, origin: part}}\n"
    (tmp_path / "mix.yaml").write_text(f"{text}pipeline: [decode]\n")
    with gpupipe.load(tmp_path / "mix.yaml", device="cpu", ids=True, batch_size=12) as loader:
        batch = next(iter(loader))
    assert batch["part"].sum() == 8
    assert batch["label"].tolist() == [id % 60 % 7 for id in batch["id"].tolist()]


@pytest.mark.parametrize(
    ("engine", "form", "reason"),
    [
        ("cpu", "bytes", "Faulty.3.*not an image"),
        ("dataloader", "bytes", "Faulty.3.*not an image"),
        ("cpu", "path", "no/such.jpg.*no such file"),
        ("dali", "path", "no/such.jpg.*no such file"),
        (
            "cpu",
            "pillow",
            r"Faulty\[3\]: its 'image' is a int 5, but that of the first item is an image",
        ),
        (
            "cpu",
            "array",
            r"Faulty\[3\]: .*\(9, 40, 3\) of uint8.* is uint8 \(40, 40, 3\); images that diff",
        ),
    ],
)
def test_an_item_at_fault_is_named_and_may_be_skipped(
    root: Path, engine: str, form: str, reason: str
) -> None:
    steps = [] if form == "array" else DECODE
    with (
        load(Faulty(root, form), steps, engine=engine) as loader,
        pytest.raises(gpupipe.SampleError, match=reason),
    ):
        list(loader)
    with load(Faulty(root, form), steps, engine=engine, on_error="skip", max_bad=0.1) as loader:
        assert sorted(by_id(loader)) == [n for n in range(60) if n != 3]


def test_a_data_set_that_is_shorter_than_it_says_is_named(root: Path) -> None:
    with (
        load(Lying(root)) as loader,
        pytest.raises(
            gpupipe.SampleError,
            match=r"Lying\[6[01]\]: .*IndexError: .*user_datasets.*its len\(\) is 62",
        ),
    ):
        list(loader)


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        ([], "list: it is empty"),
        (Stream(), "Stream: it is an IterableDataset, .*write a class with __len__"),
        (torch.utils.data.DataLoader([1, 2]), r"it is a DataLoader.*gpupipe.load\(loader.dataset"),
        ({1, 2}, "set: it is a set without __getitem__"),
        ([{"a": 1}], r"list\[0\] is a dict, but an item is an image"),
        (["a.jpg", b"", "b.jpg"], r"list\[1\] is a bytes, but list\[0\] is a path"),
        ([("a.jpg", 1), ("b.jpg", "x")], r"list\[1\]: the label 'x' is a name"),
        ([(b"1", 1), (b"1", 1.7)], r"list\[1\]: its label is no whole number: 'float'"),
        (
            [{"image": b"1", "caption": "hi", "id": 3}],
            r"list\[0\]\['caption'\] is a str 'hi', no image and no number: name what .*"
            r"data.fields {image: image",
        ),
        (
            [{"image": b"1", "id": 3}],
            r"list\[0\]\['id'\]: 'id' is taken.*{image: image, field_1: id}",
        ),
        ([(b"1", None)], r"list\[0\]\[1\] is a NoneType"),
        (
            [{"image": b"1", "label": "cat"}],
            r"list\[0\]\['label'\] is a str 'cat', no image .*: a label is a number.*data.label",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_data_set_is_refused_with_the_reason(dataset: Any, reason: str) -> None:
    with pytest.raises(gpupipe.GpupipeError, match=f"(?s){reason}"):
        load(dataset)


def test_items_that_draw_from_global_generators_are_refused(root: Path) -> None:
    before = random.getstate()
    with pytest.raises(gpupipe.DataError, match=r"Drawing\[0\] draws from Python's module random"):
        load(Drawing(root))
    assert random.getstate() == before


def test_keys_that_items_lack_are_refused() -> None:
    items = [{"image": b"1"}]
    with pytest.raises(
        gpupipe.DataError, match=r"has no 'imag'; did you mean 'image'\?.*data.fields"
    ):
        load(items, data={"fields": {"x": "imag"}})
    with pytest.raises(gpupipe.DataError, match=r"has no 'breed'; known: image: see"):
        load(items, data={"label": "breed"})
    with pytest.raises(
        gpupipe.ConfigError, match=r"data.call.*'module:name' of a class or function"
    ):
        gpupipe.load({"data": {"source": "python", "call": "faces"}, "pipeline": ["decode"]})
    with pytest.raises(gpupipe.ConfigError, match=r"cache_decoded.*nothing says when an item"):
        load(items, data={"cache_decoded": {"where": "memory", "max_bytes": "8MB"}})
