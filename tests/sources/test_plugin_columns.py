"""A source of another package with a Column of its own, in one file: images in a database."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe import config as configs
from gpupipe.bench.contestant import drop_from_page_cache
from gpupipe.bench.parity import measure
from gpupipe.dataset import index_cache
from gpupipe.errors import EngineError, SampleError, UsageError
from gpupipe.testing import check_loader
from helpers.loaders import ENGINES
from helpers.plugin import install
from helpers.served import serving

COUNT = 24
STEPS = ["decode", {"random_crop": {"size": 64}}, "random_horizontal_flip"]
PICKLED = {"engine": "dataloader", "workers": 1, "multiprocessing_context": "forkserver"}
"""Workers get the column as a pickle, as with spawn, which imports torch again for each."""


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the helper sqlite_plugin as another package, for this process and its children."""
    site = tmp_path / "site"
    site.mkdir()
    code = (Path(__file__).parents[1] / "helpers" / "sqlite_plugin.py").read_text()
    install(site, "sqlite_plugin", code, source_sqlite="Sqlite")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


@pytest.fixture
def files(faces: Path, tmp_path: Path) -> Path:
    """A manifest of 24 faces with labels."""
    lines = [f"{path}\t{n % 3}" for n, path in enumerate(sorted(faces.glob("*/*.jpg"))[:COUNT])]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    return tmp_path / "list.txt"


@pytest.fixture
def database(files: Path, tmp_path: Path) -> Path:
    """The same faces as BLOBs, with an array (2, 3) each: key 100 + n is the n-th."""
    with closing(sqlite3.connect(tmp_path / "faces.db")) as connection, connection:
        connection.execute(
            "CREATE TABLE samples (key INTEGER PRIMARY KEY, label INTEGER, image BLOB, depth BLOB)"
        )
        for n, line in enumerate(files.read_text().splitlines()):
            path, label = line.split("\t")
            row = 100 + n, int(label), Path(path).read_bytes(), depth(n).tobytes()
            connection.execute("INSERT INTO samples VALUES (?, ?, ?, ?)", row)
    return tmp_path / "faces.db"


def depth(n: int) -> np.ndarray[Any, Any]:
    return np.full((2, 3), n, np.float32)


def change(database: Path, key: int, **blobs: bytes | None) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        for field, blob in blobs.items():
            connection.execute(f"UPDATE samples SET {field} = ? WHERE key = ?", (blob, key))


def config_of(database: Path, **data: Any) -> dict[str, Any]:
    return {"data": {"source": "sqlite", "file": str(database)} | data, "pipeline": STEPS}


def load_config(config: dict[str, Any], **options: Any) -> gpupipe.Loader:
    return gpupipe.load(config, **{"device": "cpu", "batch_size": 5, "ids": True} | options)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("options", [*ENGINES, PICKLED], ids=str)
def test_images_in_a_database_are_the_same_as_in_files(
    files: Path, database: Path, options: dict[str, Any]
) -> None:
    from_files = {
        "data": {"source": "file_list", "file": str(files), "root": "/"},
        "pipeline": STEPS,
    }
    in_process = {"engine": "dataloader", "workers": 0} if options is PICKLED else options
    with (
        load_config(config_of(database), **options) as ours,
        load_config(from_files, **in_process) as theirs,
    ):
        for a, b in zip(ours, theirs, strict=True):
            assert all(torch.equal(a[name], b[name]) for name in ("image", "label", "id"))


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_arrays_of_a_database_are_delivered(database: Path, options: dict[str, Any]) -> None:
    with load_config(config_of(database, shape=[2, 3]), **options) as loader:
        for batch in loader:
            for i, array in zip(batch["id"].tolist(), batch["depth"], strict=True):
                assert array.tolist() == depth(i).tolist()


@pytest.mark.parametrize("options", ENGINES, ids=str)
@pytest.mark.parametrize(
    ("blobs", "reason"),
    [
        ({"image": b"no image"}, "not an image in a known format"),
        ({"image": b""}, "empty"),
        ({"image": None}, "no image with key 107"),
        ({"depth": b"1234"}, "4 bytes, but float32 of shape"),
        ({"depth": None}, "no depth with key 107"),
    ],
    ids=["no image", "empty", "gone", "a short array", "an array gone"],
)
def test_a_bad_sample_is_named_by_its_location_and_skipped(
    database: Path, blobs: dict[str, bytes | None], reason: str, options: dict[str, Any]
) -> None:
    config = config_of(database, shape=[2, 3])
    change(database, 107, **blobs)
    with (
        load_config(config, **options) as loader,
        pytest.raises(SampleError, match=rf"{database}:key 107: .*{reason}"),
    ):
        list(loader)
    with load_config(config, **options, on_error="skip", max_bad=0.1) as loader:
        ids = [i for batch in loader for i in batch["id"].tolist()]
        assert sorted(ids) == [i for i in range(COUNT) if i != 7]
        assert len(loader.engine.quarantine) == 1


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_the_contract_of_a_loader_holds(database: Path, options: dict[str, Any]) -> None:
    """Resume, ranks, order and epochs."""
    check_loader(lambda **changes: load_config(config_of(database), **{**options, **changes}))


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_an_error_that_read_must_not_raise_is_no_fault_of_a_sample(
    database: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: Any, rows: Any) -> Any:
        raise KeyError("a mistake")

    with load_config(config_of(database), **options, on_error="skip") as loader:
        monkeypatch.setattr(type(loader.index.columns["image"]), "read", read)
        with pytest.raises(EngineError, match=r"BlobColumn\.read\(\) raised KeyError: 'a mistake'"):
            list(loader)


def test_engines_agree(database: Path) -> None:
    config = configs.read({"data": config_of(database)["data"], "pipeline": ["decode"]})
    (agreement,) = measure(config, config.source.index(), ["cpu"], 20, last=True)
    assert agreement.images == 20
    assert agreement.max <= 1


@pytest.fixture
def server(database: Path) -> Iterator[str]:
    with serving(config_of(database), {"device": "cpu", "batch_size": 5}) as server:
        yield server.address


def test_a_server_delivers_the_same(database: Path, server: str) -> None:
    with load_config(config_of(database)) as own, gpupipe.connect(server, ids=True) as served:
        for a, b in zip(own, served, strict=True):
            assert all(torch.equal(a[name], b[name]) for name in ("image", "label", "id"))


def test_what_needs_files_says_so(database: Path, tmp_path: Path) -> None:
    index = configs.read(config_of(database)).source.index()
    with pytest.raises(UsageError, match=r"'image' is a BlobColumn, which cannot be saved"):
        index_cache.save(index, tmp_path / "saved.idx")
    with pytest.raises(EngineError, match="local files, not in a BlobColumn"):
        drop_from_page_cache(index)


def test_the_index_knows_its_samples(database: Path) -> None:
    index = configs.read(config_of(database)).source.index()
    few = index.subset(np.array([3, 1]))
    assert [few.location(i) for i in range(2)] == [f"{database}:key 103", f"{database}:key 101"]
    assert few.read(1).tobytes() == index.read(1).tobytes()
    assert few.fingerprint != index.fingerprint
    assert few.has_same_samples(index.subset(np.array([3, 1])))
    assert not few.has_same_samples(index.subset(np.array([3, 2])))
