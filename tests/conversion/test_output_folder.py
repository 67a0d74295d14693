"""The folder of the shards: whose fault a failure is, and one conversion at a time."""

from pathlib import Path

import pytest

from gpupipe.conversion.output_folder import hold_folder
from gpupipe.errors import GpupipeError, SampleError
from helpers import disks
from helpers.conversions import run


def test_a_full_disk_is_a_failure_of_the_machine(photo_config: Path, tmp_path: Path) -> None:
    with (
        disks.mounted(tmp_path / "disk", "600k") as disk,
        pytest.raises(GpupipeError, match="no space left on device") as caught,
    ):
        run(photo_config, disk / "out")
    assert not isinstance(caught.value, SampleError)
    assert ".jpg" not in str(caught.value)
    assert "shard-" in str(caught.value)


def test_two_conversions_do_not_write_to_one_folder(photo_config: Path, tmp_path: Path) -> None:
    with (
        hold_folder(tmp_path),
        pytest.raises(GpupipeError, match="another conversion writes to it"),
    ):
        run(photo_config, tmp_path)
    assert not list(tmp_path.iterdir())
