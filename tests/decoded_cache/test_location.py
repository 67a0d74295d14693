"""Where the files of decoded caches are, which belongs to a job, and how they are emptied."""

from pathlib import Path
from typing import Any

import pytest

from gpupipe.dataset.source import DecodedCacheOptions
from gpupipe.decoded_cache import location
from gpupipe.decoded_cache.cache_file import read_header
from gpupipe.decoded_cache.decoded_cache import describe_job
from gpupipe.decoded_cache.location import empty_caches, list_caches
from gpupipe.errors import DataError
from helpers import disks

OPTIONS = DecodedCacheOptions(where="disk", max_bytes="1MB")


def describe(root: str = "/data", producer: str = "cpu") -> dict[str, Any]:
    return describe_job(root, None, producer, ("torch",), {})


def test_each_job_has_a_file_of_its_own() -> None:
    jobs = [describe(), describe("/other"), describe(producer="dali")]
    paths = [location.prepare_file(OPTIONS, job, 100) for job in jobs]
    assert len(set(paths)) == 3
    assert location.list_files("disk") == sorted(paths)
    assert {path.parent for path in paths} == {location.cache_folder("disk")}
    assert location.prepare_file(OPTIONS, describe(), 100) == paths[0]
    header = read_header(paths[1])
    assert (header.size, header.about["root"]) == (1_000_000, "/other")


def test_paths_are_absolute_and_urls_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert describe("data")["root"] == f"{tmp_path}/data"
    assert describe("s3://bucket/data")["root"] == "s3://bucket/data"


def test_a_file_that_is_damaged_or_of_another_size_is_made_again() -> None:
    path = location.prepare_file(OPTIONS, describe(), 100)
    path.write_bytes(b"damage")
    location.prepare_file(OPTIONS, describe(), 100)
    assert read_header(path).size == 1_000_000
    larger = DecodedCacheOptions(where="disk", max_bytes="2MB")
    assert location.prepare_file(larger, describe(), 100) == path
    assert read_header(path).size == 2_000_000


def test_what_does_not_fit_on_the_disk_is_refused() -> None:
    huge = DecodedCacheOptions(where="disk", max_bytes="900TB")
    with pytest.raises(DataError, match=r"max_bytes is 900\.0TB, but .* free: make it smaller"):
        location.prepare_file(huge, describe(), 100)
    assert location.list_files("disk") == []


def test_a_cache_in_memory_is_limited_by_its_folder_and_by_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the one that has less free."""
    huge = DecodedCacheOptions(where="memory", max_bytes="900TB")
    with disks.mounted(tmp_path / "shm", "1m") as small:
        monkeypatch.setenv("GPUPIPE_SHM", str(small))
        with pytest.raises(DataError, match=rf"but {small} has [\d.]+(MB|kB) free"):
            location.prepare_file(huge, describe(), 100)
    with disks.mounted(tmp_path / "large", "500t") as large:
        monkeypatch.setenv("GPUPIPE_SHM", str(large))
        with pytest.raises(DataError, match=r"but the memory of this machine has [\d.]+GB free"):
            location.prepare_file(huge, describe(), 100)


def test_caches_in_memory_are_kept_apart_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPIPE_SHM", str(tmp_path))
    before = location.cache_folder("memory")
    with location.own_shared_memory():
        own = location.cache_folder("memory")
        assert own.parent.parent == tmp_path
        assert own.parent.is_dir()
    assert location.cache_folder("memory") == before
    assert not own.parent.exists()


@pytest.fixture
def files() -> list[Path]:
    """Two caches on the disk."""
    jobs = [describe_job(root, None, "cpu", (), {}) for root in ("/one", "/two")]
    return sorted(location.prepare_file(OPTIONS, job, 100) for job in jobs)


def test_each_cache_says_what_it_is_for(files: list[Path]) -> None:
    states = list_caches(["disk"])
    assert [state.path for state in states] == [str(file) for file in files]
    assert {state.root for state in states} == {"/one", "/two"}
    for state in states:
        assert (state.max_bytes, state.images, state.share) == (1_000_000, 0, None)
        assert (state.engine, state.in_use, state.damaged) == ("cpu", False, "")


def test_a_damaged_one_is_listed_with_the_reason(files: list[Path]) -> None:
    files[0].write_bytes(b"damage")
    damaged, sound = list_caches(["disk"])
    assert "no cache file of this version" in damaged.damaged
    assert (damaged.max_bytes, sound.damaged) == (6, "")


def test_emptying_removes_all_and_says_what_there_was(files: list[Path]) -> None:
    assert [state.path for state in empty_caches(["disk"])] == [str(file) for file in files]
    assert not any(file.exists() for file in files)
    assert list_caches(["disk"]) == []
