"""Several fields a sample, of tar shards: images, masks, arrays, and numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset

import gpupipe
from gpupipe.sources.webdataset import Webdataset
from helpers.image_fields import COUNT, STEPS, depth, mask, png
from helpers.image_files import npy
from helpers.loaders import ENGINES


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By WebDataset's own writer: the image shows in gray what the mask says."""
    folder = tmp_path_factory.mktemp("fields")
    with webdataset.ShardWriter(f"{folder}/%d.tar", maxcount=6, verbose=0) as sink:
        for n in range(COUNT):
            sample: dict[str, Any] = {
                "__key__": f"{n:03}",
                "png": png(np.dstack([mask(n)] * 3)),
                "seg.png": png(mask(n)),
                "cls": n % 3,
            }
            sink.write(
                sample
                | {
                    "depth.npy": depth(n),
                    "odd.npy": np.zeros((n + 1, 2), "i4"),
                    "json": {"weight": n / 4, "box": [n, 1, 2], "text": "a"},
                }
            )
    return folder


FIELDS = {"image": ["jpg", "png"], "mask": "seg.png", "depth": "depth.npy"}
VALUES = {"weight": "json:weight", "box": "json:box"}


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_fields_of_shards_are_delivered_together(shards: Path, options: dict[str, Any]) -> None:
    data = {
        "source": "webdataset",
        "shards": f"{shards}/*.tar",
        "masks": ["mask"],
        "values": VALUES,
    }
    data["fields"] = FIELDS | {
        "depth": {"member": "depth.npy", "dtype": "float32", "shape": [2, 3, 4]}
    }
    with gpupipe.load(
        {"data": data, "pipeline": STEPS}, device="cpu", ids=True, batch_size=4, **options
    ) as loader:
        batches = list(loader)
    assert sorted(i for batch in batches for i in batch["id"].tolist()) == list(range(COUNT))
    for batch in batches:
        ids = batch["id"].tolist()
        assert torch.equal(batch["image"][:, :1], batch["mask"])
        assert torch.equal(batch["depth"], torch.stack([torch.from_numpy(depth(i)) for i in ids]))
        assert batch["weight"].tolist() == [i / 4 for i in ids]
        assert batch["box"].tolist() == [[i, 1, 2] for i in ids]
        assert batch["label"].tolist() == [i % 3 for i in ids]


def test_the_index_says_where_arrays_are_and_what(shards: Path) -> None:
    source = Webdataset(
        shards=f"{shards}/*.tar",
        fields={"image": "png", "depth": "depth.npy", "odd": "odd.npy"},
        values=VALUES,
    )
    index = source.index()
    for n in range(COUNT):
        assert index.read(n, "depth").tobytes() == depth(n).tobytes()
    arrays = {name: column.array for name, column in index.columns.items()}
    assert arrays["image"] is None
    assert arrays["depth"] is not None
    assert arrays["odd"] is not None
    assert (arrays["depth"].dtype, arrays["depth"].shape) == ("float32", (2, 3, 4))
    assert (arrays["odd"].dtype, arrays["odd"].shape) == ("int32", None)
    assert [arrays["odd"].shape_of(n) for n in range(COUNT)] == [(n + 1, 2) for n in range(COUNT)]
    assert index.values["box"].dtype == np.int64
    assert index.values["weight"].dtype == np.float64
    specs = source.specs()
    assert specs["image"].encoded
    assert (specs["depth"].encoded, specs["depth"].dtype, specs["depth"].size) == (
        False,
        "float32",
        None,
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a field that samples lack": (
        {"fields": {"image": "png", "mask": "gt.png"}},
        r"0\.tar: 000: no member for the field 'mask' \(gt\.png; it has cls, ",
    ),
    "an array of another dtype": (
        {"fields": {"d": {"member": "depth.npy", "dtype": "int32"}}},
        "000.depth.npy: an array of float32, where int32 was expected",
    ),
    "an array of another shape": (
        {"fields": {"d": {"member": "depth.npy", "dtype": "float32", "shape": [2, 3]}}},
        r"000.depth.npy: an array of shape \[2, 3, 4\], where " r"\[2, 3\] was expected",
    ),
    "no key": (
        {"fields": {"image": "png"}, "values": {"v": "json:wight"}},
        r"000.json: no 'wight' in it",
    ),
    "text for a value": (
        {"fields": {"image": "png"}, "values": {"v": "json:text"}},
        "000: 'a' at json:text is no number",
    ),
    "no member for a value": (
        {"fields": {"image": "png"}, "values": {"v": "xml"}},
        "000: no member 000.xml",
    ),
    "a mapping for a value": (
        {"fields": {"image": "png"}, "values": {"v": "json"}},
        "is no number",
    ),
}


@pytest.mark.parametrize(("options", "said"), REFUSED.values(), ids=REFUSED)
def test_shards_that_do_not_hold_what_is_asked_for(
    shards: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(gpupipe.DataError, match=said):
        Webdataset(shards=f"{shards}/*.tar", **options).index()


def shard(path: Path, *samples: dict[str, bytes]) -> str:
    with webdataset.TarWriter(str(path)) as sink:
        for n, sample in enumerate(samples):
            sink.write({"__key__": str(n)} | sample)
    return str(path)


ODD: dict[str, tuple[list[dict[str, bytes]], str]] = {
    "two dtypes": (
        [{"npy": npy(np.zeros(2, "f4"))}, {"npy": npy(np.zeros(2, "f8"))}],
        "1.npy: an array of float64, where float32 was expected",
    ),
    "two numbers of axes": (
        [{"npy": npy(np.zeros(2))}, {"npy": npy(np.zeros((2, 2)))}],
        r"1.npy: an array of shape \[2, 2\], but 0.npy has \[2\]",
    ),
    "cut off": (
        [{"npy": npy(np.zeros(2))[:-1]}],
        "0.npy: 143 bytes, but its header tells of 144: the array is not whole",
    ),
    "bytes behind it": (
        [{"npy": npy(np.zeros(2)) + b"x"}],
        "0.npy: 145 bytes, but its header tells of 144",
    ),
    "of another format": ([{"npy": b"hello, hello"}], "0.npy: no .npy file"),
    "without numbers": ([{"npy": npy(np.zeros((0, 3)))}], "0.npy: an array without numbers"),
}


@pytest.mark.parametrize(("samples", "said"), ODD.values(), ids=ODD)
def test_arrays_that_are_refused(
    tmp_path: Path, samples: list[dict[str, bytes]], said: str
) -> None:
    with pytest.raises(gpupipe.DataError, match=rf"a\.tar: {said}"):
        Webdataset(
            shards=shard(tmp_path / "a.tar", *samples), fields={"a": "npy"}, label=None
        ).index()


def test_shards_that_do_not_fit_each_other(tmp_path: Path) -> None:
    first = shard(tmp_path / "a.tar", {"npy": npy(np.zeros(2, "f4")), "json": b'{"v": 1}'})
    for name, array, value, said in (
        (
            "dtype",
            np.zeros(2, "f8"),
            1,
            "the field 'a' is of float64 with 1 axis, but of float32 with 1 axis in",
        ),
        (
            "axes",
            np.zeros((2, 2), "f4"),
            1,
            "the field 'a' is of float32 with 2 axes, but of float32 with 1 axis in",
        ),
        ("values", np.zeros(2, "f4"), [1, 2], "the value 'v' is 2 numbers, but 1 number in"),
    ):
        second = shard(
            tmp_path / f"{name}.tar", {"npy": npy(array), "json": json.dumps({"v": value}).encode()}
        )
        with pytest.raises(gpupipe.DataError, match=f"^{second}: {said} {first}"):
            Webdataset(
                shards=(first, second), fields={"a": "npy"}, label=None, values={"v": "json:v"}
            ).index()


def test_two_samples_of_one_name(tmp_path: Path) -> None:
    shards = shard(tmp_path / "a.tar", {"jpg": b"x", "JPG": b"y"})
    with pytest.raises(
        gpupipe.DataError,
        match=r"a\.tar: 0\.jpg: the sample 0 has two members that end in jpg: its samples must "
        r"have different names",
    ):
        Webdataset(shards=shards, label=None).index()


def test_a_shard_without_samples_between_others(tmp_path: Path) -> None:
    shards = tuple(
        shard(tmp_path / f"{n}.tar", *([] if n == 1 else [{"jpg": b"x", "cls": str(n).encode()}]))
        for n in range(3)
    )
    index = Webdataset(shards=shards).index()
    assert [index.location(i) for i in range(2)] == [f"{tmp_path}/0.tar:0", f"{tmp_path}/2.tar:0"]
    assert index.labels.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"fields": {"image": ["jpg", "npy"]}},
            "should be one ending or several, of image files or of .npy files",
        ),
        ({"fields": {"image": []}}, "should be one ending or several"),
        (
            {"fields": {"image": {"member": "jpg", "dtype": "uint8"}}},
            "an array is a member that ends in npy, and not in jpg",
        ),
        ({"fields": {"id": "jpg"}}, "'id' cannot be the name of a field or value"),
    ],
    ids=str,
)
def test_options_that_are_refused(shards: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(gpupipe.ConfigError, match=said):
        gpupipe.load(
            {
                "data": {"source": "webdataset", "shards": f"{shards}/*.tar", **options},
                "pipeline": ["decode"],
            }
        )
