"""The file of a decoded cache is a user's own, and changes by other programs are noticed."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gpupipe
from gpupipe.dataset.source import DecodedCacheOptions
from gpupipe.decoded_cache import location
from gpupipe.decoded_cache.cache_file import lock_path, open_own, read_header
from gpupipe.decoded_cache.decoded_cache import describe_job
from gpupipe.decoded_cache.layout import DamagedCacheError
from gpupipe.errors import DataError
from gpupipe.runtime.files import explain_foreign
from helpers.decoded_caches import MEMORY, key, new_file, picture, the_file

OPTIONS = DecodedCacheOptions(where="memory", max_bytes="1MB")
JOB = describe_job("/data", None, "cpu", ("torch",), {})


def link(path: Path, target: Path) -> None:
    path.rename(target)
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda path: link(path, path.with_name("elsewhere")), "it is a symbolic link"),
        (lambda path: path.chmod(0o666), "it can be written by other users"),
    ],
    ids=["link", "mode"],
)
def test_a_file_that_others_may_change_is_not_opened(
    tmp_path: Path, change: Callable[[Path], None], wrong: str
) -> None:
    path = tmp_path / "file"
    new_file(path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    change(path)
    with pytest.raises(DamagedCacheError, match=wrong):
        open_own(path)


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(DamagedCacheError, match="it is no regular file"):
        read_header(tmp_path / "pipe")


def test_a_file_of_another_user_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    status = list(path.stat())
    status[4] = os.getuid() + 1
    assert explain_foreign(os.stat_result(status)) == "belongs to another user"
    assert explain_foreign(path.stat()) == ""


def test_a_link_in_the_place_of_a_cache_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    path = location.prepare_file(OPTIONS, JOB, 100)
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    path.unlink()
    path.symlink_to(target)
    assert location.prepare_file(OPTIONS, JOB, 100) == path
    assert not path.is_symlink()
    assert target.read_bytes() == b"precious"


def test_a_link_in_the_place_of_the_folder_or_the_lock_is_refused(
    tmp_path: Path, shared_memory: Path
) -> None:
    folder = location.cache_folder("memory")
    (tmp_path / "mine").mkdir()
    folder.symlink_to(tmp_path / "mine")
    with pytest.raises(DataError, match=rf"{folder} is a symbolic link: remove it"):
        location.prepare_file(OPTIONS, JOB, 100)
    folder.unlink()
    path = location.prepare_file(OPTIONS, JOB, 100)
    lock_path(path).unlink()
    lock_path(path).symlink_to(tmp_path / "new")
    with pytest.raises(DataError, match="symbolic links"):
        location.prepare_file(OPTIONS, JOB, 100)
    assert not (tmp_path / "new").exists()
    lock_path(path).unlink()
    folder.chmod(0o777)
    with pytest.raises(DataError, match=r"can be written by other users.*chmod 700"):
        location.prepare_file(OPTIONS, JOB, 100)


@pytest.mark.parametrize("engine", ["cpu", "dali", "dataloader"])
def test_a_cache_that_is_truncated_between_epochs_is_an_error_and_not_the_end_of_the_process(
    faces: Path, engine: str
) -> None:
    config = {
        "data": {"source": "folder", "root": str(faces), "cache_decoded": MEMORY},
        "pipeline": ["decode", {"resize": {"size": [16, 16]}}],
        "loader": {"engine": engine, "device": "cpu", "batch_size": 8, "prefetch": 1},
    }
    with gpupipe.load(config) as loader:
        list(loader)
        loader.load_state_dict(loader.state_dict())  # ends the batches that are made ahead
        path = the_file()
        os.truncate(path, 5000)
        with pytest.raises(DataError) as error:
            list(loader)
    assert str(error.value).startswith(f"data.cache_decoded: {path}: ")
    assert "another program made it 5,000 bytes long" in str(error.value)


def test_records_are_verified_again_after_another_program_wrote_to_the_file(
    tmp_path: Path,
) -> None:
    table = new_file(tmp_path / "file")
    for number in range(3):
        assert table.add(key(number), picture(number), (1, 2))
        table.check_unchanged()
    assert all(table.find(key(number)) for number in range(3)), "their checksums are known now"
    record = table.find(key(1))
    assert record is not None
    with (tmp_path / "file").open("r+b") as f:
        f.seek(record.offset)
        f.write(b"\0" * 99)
    os.utime(tmp_path / "file", ns=(1, 1))
    table.check_unchanged()
    assert table.find(key(1)) is None, "pixels that do not match their checksum are not delivered"
    assert np.array_equal(table.pixels(table.find(key(2)) or record), picture(2))
