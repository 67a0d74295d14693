"""Training over the shards of each format, through the cache."""

import json
import re
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import gpupipe
from gpupipe import config as configs
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.settings import CacheOptions
from gpupipe.cli.app import main
from helpers.cached_loading import Config, ids, load
from helpers.faulty_store import serve
from helpers.full_product import IS_FULL
from helpers.loaders import ENGINES
from helpers.stored_shards import WRITERS, cached, write_tar

SIZES = (7, 9, 0, 8, 6)
FIRSTS = np.cumsum([0, *SIZES]).tolist()
OPTIONS: dict[str, dict[str, Any]] = {
    "parquet": {"values": {"v": "v"}},
    "mds": {"values": {"v": "v"}},
    "tfrecord": {"values": {"v": "v"}},
    "npz": {"options": {"rows": True, "arrays": {"array": "x", "labels": "y"}, "labels": "same"}},
    "npy": {"options": {"rows": True, "field": "array"}},
    "h5": {"fields": {"image": "image"}, "label": "label", "values": {"v": "v"}},
}
ARRAYS = [{"to_dtype": {"dtype": "float32"}}]


def write_store(root: Path, faces: Path, ending: str) -> list[bytes]:
    """Write 30 faces, or as many rows of numbers, to 4 shards; one has none. Return the faces."""
    root.mkdir()
    images = [path.read_bytes() for path in sorted(faces.glob("*/*.jpg"))[: FIRSTS[-1]]]
    for n, size in enumerate(SIZES):
        part = images[FIRSTS[n] : FIRSTS[n] + size]
        WRITERS[ending](root / f"s-{n}.{ending}", part, FIRSTS[n])
    return images


@pytest.mark.parametrize(
    ("ending", "options"),
    list(product(OPTIONS, ENGINES)) if IS_FULL else list(zip(OPTIONS, cycle(ENGINES))),
    ids=str,
)
def test_shards_of_each_format_grow_and_are_what_the_store_has(
    faces: Path, config: Config, tmp_path: Path, ending: str, options: dict[str, Any]
) -> None:
    images = write_store(tmp_path / "store", faces, ending)
    url, size = f"file://{tmp_path}/store", "8MB"  # a Parquet file is one shard
    settings = config(url=url, shards=f"*.{ending}", epoch="full", max_bytes=size)
    settings["data"] |= OPTIONS[ending]
    if ending.startswith("np"):
        settings["pipeline"] = ARRAYS
    with load(settings, **options) as loader:
        seen = []
        for batch in loader:
            numbers = [FIRSTS[id >> 32] + (id & 0xFFFF) for id in batch["id"].tolist()]
            if ending == "npy":
                assert "label" not in batch
            else:
                assert batch["label"].tolist() == numbers
            if "v" in batch:
                half = 1 if ending == "tfrecord" else 2
                assert (batch["v"] * half).tolist() == numbers
            if ending.startswith("np"):
                assert batch["array"].flatten(1)[:, -1].tolist() == numbers
            else:
                for id, number in zip(batch["id"].tolist(), numbers, strict=True):
                    assert bytes(loader.index.read(id)) == images[number]
            seen += numbers
    assert sorted(seen) == list(range(FIRSTS[-1]))
    folder = CacheFolder(CacheOptions(**settings["data"]["cache"]))
    for name in cached(folder):
        original = (tmp_path / "store" / f"s-{int(name) - 1}.{ending}").read_bytes()
        assert folder.list_shard_paths(name)[0].read_bytes() == original


@pytest.mark.parametrize("ending", OPTIONS if IS_FULL else ["parquet", "npz"])
def test_a_damaged_shard_of_each_format_is_named(
    faces: Path, config: Config, tmp_path: Path, ending: str
) -> None:
    write_store(tmp_path / "store", faces, ending)
    path = tmp_path / "store" / f"s-1.{ending}"
    path.write_bytes(path.read_bytes()[:-40])
    settings = config(url=f"file://{tmp_path}/store", shards=f"*.{ending}", epoch="full")
    settings["data"] |= OPTIONS[ending]
    if ending.startswith("np"):
        settings["pipeline"] = ARRAYS
    said = rf"file://{tmp_path}/store/s-1.{ending}: "
    with load(settings, engine="cpu") as loader, pytest.raises(gpupipe.SampleError, match=said):
        ids(loader)
    with load(settings, engine="cpu", on_error="skip", max_bad=0.2) as loader:
        assert {id >> 32 for id in ids(loader)} == {0, 3, 4}


def test_the_shape_of_arrays_takes_one_shard_of_the_worker_that_has_listed_them(
    faces: Path, config: Config, tmp_path: Path
) -> None:
    write_store(tmp_path / "store", faces, "npy")
    with serve(tmp_path / "store") as (url, faults):
        settings = config(url=url, shards="s-{0..4}.npy")
        settings["data"] |= OPTIONS["npy"]
        settings["pipeline"] = ARRAYS
        source = configs.read(settings).source
        assert source.specs()["array"].shape == (2, 3)
        assert len(set(faults.asked)) == 1
        assert len(source.index()) in SIZES


@pytest.mark.parametrize("seed", [0, 2])
def test_the_shape_of_arrays_is_not_looked_for_in_an_empty_shard(
    faces: Path, config: Config, tmp_path: Path, seed: int
) -> None:
    write_store(tmp_path / "store", faces, "npy")
    settings = config(url=f"file://{tmp_path}/store", shards="s-{1..2}.npy")
    settings["data"] |= OPTIONS["npy"] | {"seed": seed}
    settings["pipeline"] = ARRAYS
    assert configs.read(settings).source.specs()["array"].shape == (2, 3)
    settings["data"] |= {"shards": "s-2.npy"}
    settings["data"]["cache"]["dir"] = str(tmp_path / "other")
    with pytest.raises(gpupipe.DataError, match=r"is in the cache in .*, with 1 shard without"):
        configs.read(settings).source.specs()


def test_a_tar_has_no_samples_only_if_it_has_no_members(
    make: Any, faces: Path, tmp_path: Path
) -> None:
    image = next(faces.glob("*/*.jpg")).read_bytes()
    write_tar(tmp_path / "store/0.tar", [])
    write_tar(tmp_path / "store/1.tar", [{"jpg": image, "cls": b"0"}])
    write_tar(tmp_path / "store/2.tar", [{"txt": b"no image"}])
    (tmp_path / "store/3.tar").touch()
    (tmp_path / "store/4.tar").write_bytes(bytes(20_480))
    made = make({"url": f"file://{tmp_path}/store", "shards": "*.tar"})
    assert made.fill() == "failed"
    assert sorted(map(int, cached(made.folder))) == [1, 2]
    assert made.filler.statistics.samples == 1
    reasons = made.filler.statistics.failed.reasons
    assert "none has a member that ends in jpg" in reasons[2]
    assert "0 bytes are no tar" in reasons[3]
    assert "no sample in 1 shard" in reasons[4]


def test_a_shard_that_is_compressed_inside_is_refused(config: Config, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    np.savez_compressed(tmp_path / "store" / "a.npz", x=np.zeros((4, 3), np.float32))
    settings = config(url=f"file://{tmp_path}/store", shards="*.npz")
    settings["data"] |= {"options": {"rows": True}}
    settings["pipeline"] = ARRAYS
    with pytest.raises(gpupipe.DataError, match=r"store/a.npz: compress"):
        load(settings, engine="cpu")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "tar: labels are names, such as 'cat'.* list all names in d"),
        ({"classes": ["cat", "dgo"]}, r"tar:s/00000\d: the label 'dog' .* did you mean 'dgo'"),
    ],
)
def test_labels_that_classes_do_not_number_are_refused_before_all_shards_come(
    config: Config, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    for n in range(20):
        samples = [{"jpg": b"\xff\xd8\xff", "cls": name} for name in (b"dog", b"cat")]
        write_tar(tmp_path / "store" / f"{n}.tar", samples)
    settings = config(url=f"file://{tmp_path}/store", shards="*.tar", **options)
    file = tmp_path / "x.yaml"
    file.write_text(json.dumps(settings))
    said = rf"^{file}:1:\d+: .*store/\d+\.{said}"
    with gpupipe.load(file, device="cpu", on_error="skip") as loader:
        for count in (lambda: len(loader), lambda: len(list(loader))):
            with pytest.raises(gpupipe.DataError, match=said):
                count()
    filled = CliRunner().invoke(main, ["cache", "fill", str(file)])
    assert filled.exit_code == 1
    assert re.search(said.replace("^", "error: "), filled.stderr)
    log = CacheFolder(CacheOptions(**settings["data"]["cache"])).commit_log
    log.refresh()
    assert not log.broken_rows()
