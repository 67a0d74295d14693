"""The tfrecord source: what the real writers make, and what batches hold of it."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tfrecord import TFRecordWriter

import gpupipe
from gpupipe.sources.tfrecord import Tfrecord
from gpupipe.testing import check_loader
from helpers.loaders import ENGINES
from helpers.tfrecords import REAL, STEPS, TOLD


def test_tensorflows_own_file() -> None:
    source = Tfrecord(
        shards=str(REAL),
        verify=True,
        values={"ints": "ints", "floats": "floats", "weight": "weight"},
        fields={
            "image": "image/encoded",
            "depth": {"feature": "floats", "shape": [1, 1, 3]},
            "raw": {"feature": "raw", "shape": [3], "dtype": "int32"},
        },
    )
    index = source.index()
    assert [hashlib.blake2b(index.read(i)).hexdigest() for i in range(6)] == [
        told["image"] for told in TOLD
    ]
    assert index.labels.tolist() == [told["label"] for told in TOLD]
    assert index.classes == ["0", "1", "2"]
    for name in ("ints", "weight"):
        assert index.values[name].tolist() == [told[name] for told in TOLD]
    assert (
        index.values["floats"].tolist()
        == np.array([told["floats"] for told in TOLD], np.float32).tolist()
    )
    assert (
        index.read(4, "depth").view(np.float32).tolist()
        == np.array(TOLD[4]["floats"], np.float32).tolist()
    )
    assert index.read(4, "raw").tolist() == list(range(4, 16))
    assert index.location(4) == f"{REAL}:4"
    depth, raw = (index.columns[name].array for name in ("depth", "raw"))
    assert depth is not None
    assert raw is not None
    assert (depth.dtype, depth.shape, raw.dtype, raw.shape) == ("float32", (1, 1, 3), "int32", (3,))


def test_names_are_labels_too() -> None:
    index = Tfrecord(shards=str(REAL), label="image/class/text").index()
    assert [index.classes[n] for n in index.labels] == [told["name"] for told in TOLD]


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_batches_hold_what_the_files_hold(options: dict[str, Any]) -> None:
    data = {"source": "tfrecord", "shards": REAL, "values": {"weight": "weight"}}
    data["fields"] = {"image": "image/encoded", "depth": {"feature": "floats", "shape": [1, 1, 3]}}
    with gpupipe.load(
        {"data": data, "pipeline": STEPS}, device="cpu", ids=True, batch_size=4, **options
    ) as loader:
        for batch in loader:
            ids = batch["id"].tolist()
            assert batch["image"].shape[1:] == (3, 20, 20)
            assert batch["label"].tolist() == [TOLD[i]["label"] for i in ids]
            assert batch["weight"].tolist() == [TOLD[i]["weight"] for i in ids]
            assert torch.equal(
                batch["depth"].flatten(1), torch.tensor([TOLD[i]["floats"] for i in ids])
            )


@pytest.fixture(scope="module")
def shards(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The faces, in the folder source's order and with its labels, 20 in each of 3 shards of the
    package tfrecord.
    """
    folder = tmp_path_factory.mktemp("tfrecords")
    classes = sorted(p.name for p in faces.iterdir() if p.is_dir())
    files = sorted(faces.glob("*/*.jpg"))
    for n in range(3):
        writer = TFRecordWriter(str(folder / f"faces-{n:03}"))
        for file in files[20 * n : 20 * n + 20]:
            writer.write(
                {
                    "image/encoded": (file.read_bytes(), "byte"),
                    "image/class/label": (classes.index(file.parent.name), "int"),
                }
            )
        writer.close()
    return folder


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_samples_labels_and_pixels_are_those_of_the_folder(
    faces: Path, shards: Path, options: dict[str, Any]
) -> None:
    config = {
        "data": {"source": "folder", "root": faces},
        "pipeline": ["decode", {"random_crop": {"size": 100}}],
    }
    other = config | {"data": {"source": "tfrecord", "shards": f"{shards}/faces-{{000..002}}"}}
    with (
        gpupipe.load(other, device="cpu", ids=True, **options) as found,
        gpupipe.load(config, device="cpu", ids=True, **options) as expected,
    ):
        for a, b in zip(found, expected, strict=True):
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_contract_holds(shards: Path) -> None:
    config = {
        "data": {"source": "tfrecord", "shards": f"{shards}/faces-001"},
        "pipeline": ["decode", {"random_crop": {"size": 100}}],
    }
    check_loader(lambda **changes: gpupipe.load(config, device="cpu", engine="dali", **changes))
