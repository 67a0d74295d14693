"""`source: hdf5`: what every engine delivers, the order of chunks, and mistakes in a config."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import gpupipe
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.hdf5 import Hdf5
from helpers.array_stores import COUNT, IMAGES, LABELS, SHAPE, make_jpegs, write_hdf5
from helpers.folders import make_files_old
from helpers.loaders import load

ENGINES: list[dict[str, Any]] = [
    {"engine": "cpu", "threads": 2},
    {"engine": "dali"},
    {"engine": "dataloader", "workers": 0},
]
FLIP = [{"random_horizontal_flip": {"on": ["image", "mask"]}}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images in compressed chunks, masks without, and JPEG files."""
    path = tmp_path_factory.mktemp("hdf5") / "a.h5"
    write_hdf5(path, chunks=(5, *SHAPE), compression="gzip", shuffle=True)
    with h5py.File(path, "a") as file:
        file["masks"] = IMAGES[..., 0]
        jpegs = file.create_dataset("jpegs", (COUNT,), h5py.vlen_dtype(np.uint8))
        for n, jpeg in enumerate(make_jpegs(COUNT)):
            jpegs[n] = jpeg
        file["target"] = np.arange(COUNT) / 4
    return path


def data(path: Path, **options: Any) -> dict[str, Any]:
    fields = {"image": "/images", "mask": "/masks"}
    layout = {"image": "HWC", "mask": "HW"}
    base = {"source": "hdf5", "files": str(path), "fields": fields, "layout": layout}
    return base | {"label": "/labels", "values": {"target": "/target"}} | options


def test_engines_deliver_the_same_batches(path: Path) -> None:
    every = []
    for engine in ENGINES:
        options = data(path, masks=["mask"], order="chunks", buffer=3)
        with load(None, FLIP, data=options, batch_size=8, seed=3, **engine) as loader:
            every.append(list(loader))
            assert len(loader) == 3
    flipped = 0
    for batches in zip(*every, strict=True):
        for batch in batches[1:]:
            assert all(np.array_equal(batch[name], batches[0][name]) for name in batches[0])
        for n, row in enumerate(batches[0]["id"].tolist()):
            image, mask = batches[0]["image"][n].numpy(), batches[0]["mask"][n].numpy()
            assert np.array_equal(mask, image[..., 0])
            flipped += not np.array_equal(image, IMAGES[row])
            assert np.array_equal(image, IMAGES[row]) or np.array_equal(image, IMAGES[row][:, ::-1])
            assert (batches[0]["label"][n], batches[0]["target"][n]) == (LABELS[row], row / 4)
    assert 0 < flipped < COUNT
    ids = [row for batch in every[0] for row in batch["id"].tolist()]
    assert sorted(ids) == list(range(COUNT))
    assert len({row // 5 for row in ids[:8]}) <= 4  # the buffer and one more


def test_ragged_jpegs_are_decoded_on_every_engine(path: Path) -> None:
    steps = ["decode", {"center_crop": {"size": 8}}]
    options = data(path, fields={"image": "/jpegs"}, layout=None)
    for engine in ENGINES:
        with load(None, steps, data=options, batch_size=11, **engine) as loader:
            for batch in loader:
                levels = batch["image"].float().mean((1, 2, 3))
                assert np.allclose(levels, 5 * batch["id"], atol=1)


def test_a_state_goes_on_on_another_engine(path: Path) -> None:
    options = data(path, order="chunks", buffer=2)
    with load(None, [], data=options, batch_size=4, **ENGINES[0]) as loader:
        every = [batch["id"].tolist() for batch in loader]
    with load(None, [], data=options, batch_size=4, **ENGINES[0]) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        state = loader.state_dict()
    with load(None, [], data=options, batch_size=4, **ENGINES[2]) as loader:
        loader.load_state_dict(state)
        assert [batch["id"].tolist() for batch in loader] == every[2:]


def test_the_index_is_saved_and_made_again_when_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    path = write_hdf5(tmp_path / "a.h5", chunks=(5, *SHAPE), compression="gzip")
    make_files_old(monkeypatch)
    options = {"files": str(path), "fields": {"image": "/images"}}
    first = Hdf5(**options).index()
    saved = list((tmp_path / "cache/index").iterdir())
    again = Hdf5(**options).index()
    assert (len(saved), again.fingerprint) == (1, first.fingerprint)
    write_hdf5(path, IMAGES[:9])
    assert len(Hdf5(**options).index()) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"order": "chunks", "chunk_cache": "1MB", "buffer": 10_000},
            r"set it to at least 19MB, or",
        ),
        ({"order": "chunks", "fields": {"image": "/masks"}, "layout": None}, "leave order out"),
        (
            {"fields": {"image": "/image"}},
            r"a\.h5: no array '/image' in it; did you mean '/images'",
        ),
    ],
)
def test_mistakes_that_the_data_show(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(None, [], data=data(path, **({"layout": None} | options)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer": 4}, "buffer is for order: chunks"),
        ({"chunk_cache": "1KB"}, "should be at least 1MB"),
        ({"layout": {"imgae": "HWC"}}, "no field is called 'imgae'; did you mean 'image'"),
        ({"label": "@kind"}, "an attribute of a sample's group: set groups"),
        ({"fields": {"image": "."}, "layout": None}, "for arrays in a group: set groups"),
        ({"fields": {}}, "fields"),
        ({"fields": {"label": "/x"}, "layout": None}, "'label' cannot be the name of a field"),
    ],
)
def test_mistakes_in_a_config(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(None, [], data=data(path, **options))


def test_chunks_go_with_neither_weights_nor_a_mix(path: Path) -> None:
    options = data(path, order="chunks")
    with pytest.raises(ConfigError, match=r"loader\.weights: they draw samples out of all chunks"):
        load(None, [], data=options, weights="class_balanced")
    mix = {"source": "mix", "parts": {"a": options, "b": data(path)}}
    with pytest.raises(ConfigError, match="order: chunks: each part of a mix"):
        gpupipe.load({"data": mix, "pipeline": []}, device="cpu")
