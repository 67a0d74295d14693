"""Photographs as a config, converted to tar and to Parquet."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpupipe.conversion.convert import ConversionResult
from helpers.conversions import COUNT, run, write_config


@pytest.fixture(scope="session")
def photo_folder(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 photographs in folders of classes."""
    root = tmp_path_factory.mktemp("photographs")
    for path in sorted(photos.glob("*/*.jpg"))[:COUNT]:
        (root / path.parent.name).mkdir(exist_ok=True)
        shutil.copy(path, root / path.parent.name / path.name)
    return root


@pytest.fixture(scope="session")
def photo_config(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config of the photographs."""
    data = {"source": "folder", "root": str(photo_folder)}
    return write_config(tmp_path_factory.mktemp("config"), data)


@pytest.fixture(scope="session")
def tarred(photo_config: Path, tmp_path_factory: pytest.TempPathFactory) -> ConversionResult:
    """The photographs in tar shards."""
    return run(photo_config, tmp_path_factory.mktemp("tar") / "shards")


@pytest.fixture(scope="session")
def in_parquet(photo_config: Path, tmp_path_factory: pytest.TempPathFactory) -> ConversionResult:
    """The photographs in Parquet shards."""
    pytest.importorskip("pyarrow", reason="needs pyarrow: install the extra 'parquet'")
    return run(photo_config, tmp_path_factory.mktemp("parquet") / "shards", format="parquet")


@pytest.fixture
def find(
    tarred: ConversionResult, request: pytest.FixtureRequest
) -> Callable[[str], ConversionResult]:
    """A function from a format to the conversion to it."""

    def find_one(format: str) -> ConversionResult:
        if format == "tar":
            return tarred
        found: ConversionResult = request.getfixturevalue("in_parquet")
        return found

    return find_one
