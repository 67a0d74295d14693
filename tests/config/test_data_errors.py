from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.errors import ConfigError, DataError
from helpers.config_texts import DATA, STEPS


def message(*overrides: str, config: Any = "c.yaml", **changes: Any) -> str:
    """The message with which load() refuses the data."""
    with pytest.raises((ConfigError, DataError)) as error:
        gpupipe.load(config, *overrides, **changes)
    return str(error.value)


@pytest.fixture
def three_samples(faces: Path) -> Path:
    """c.yaml, whose list has three samples with a column of weights."""
    names = sorted(p.relative_to(faces) for p in faces.glob("*/*.*"))[:3]
    rows = "".join(f"{name},{n % 2},{n - 1}\n" for n, name in enumerate(names))
    Path("l.csv").write_text(f"path,label,w\n{rows}")
    Path("c.yaml").write_text(
        f"data: {{source: file_list, file: l.csv, root: {faces}, values: [w]}}\n{STEPS}"
        "loader:\n  device: cpu\n  weights: w\n  batch_size: 64\n"
    )
    return Path("c.yaml")


def test_a_missing_folder_has_the_line_of_its_setting(tmp_path: Path) -> None:
    Path("c.yaml").write_text(f"data:\n  source: folder\n  root: {tmp_path}/none\n{STEPS}")
    assert message().startswith(f"c.yaml:3:9: {tmp_path}/none: no such folder")
    assert message("data.root=/nowhere").startswith("'data.root=/nowhere': /nowhere: no such")
    missing = message(
        config={"data": {"source": "folder", "root": "/none"}, "pipeline": ["decode"]}
    )
    assert missing.startswith("/none: no such folder"), "a dict has no lines"


def test_an_error_without_a_setting_has_the_line_of_its_part(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    Path("c.yaml").write_text(f"{STEPS}data: {{source: folder, root: {tmp_path}/empty}}\n")
    assert message().startswith(f"c.yaml:2:7: {tmp_path}/empty: no class folders")


def test_shards_without_samples_have_the_line_of_their_part(tmp_path: Path) -> None:
    Path("0.tar").write_bytes(bytes(10_240))
    Path("c.yaml").write_text(f"{STEPS}data: {{source: webdataset, shards: 0.tar}}\n")
    assert message().startswith("c.yaml:2:7: ")
    assert "0.tar: no sample in 1 shard" in message()


def test_weights_and_batch_size_have_the_line_of_their_setting(three_samples: Path) -> None:
    assert message().startswith("c.yaml:5:12: ")
    assert "its 'w' is -1" in message()
    assert message("weights=v").startswith("'weights=v': loader.weights: the samples have no")
    assert "write values: [w] under 'data:'" in message("data.values=[]")
    too_large = message("weights=null", "last_batch=drop")
    assert too_large.startswith("c.yaml:6:15: 3 samples cannot give 1 rank a full batch of 64")


def test_an_error_about_one_sample_keeps_its_path(three_samples: Path) -> None:
    broken = Path("broken.png")
    broken.write_bytes(b"no image")
    Path("l.csv").write_text("path,label,w\nbroken.png,0,1\n")
    with (
        gpupipe.load("c.yaml", "data.root=.", "batch_size=1") as loader,
        pytest.raises(gpupipe.SampleError, match=f"^{broken.resolve()}: "),
    ):
        list(loader)


def test_mistakes_in_the_config_keep_their_location() -> None:
    Path("c.yaml").write_text(DATA + STEPS + "loader: {batch_size: 0}\n")
    assert message().startswith("c.yaml:3:22: loader.batch_size is 0")
