"""Overrides that name another source: nothing is kept of the one before, in whatever order."""

from pathlib import Path
from typing import Any

import pytest

from gpupipe import config
from gpupipe.errors import ConfigError

SHARDS = "/s/{0..3}.tar"
LFW = "data: {source: folder, root: /x, fetch: lfw, stand_in: 3}\npipeline: [decode]\n"


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(LFW)


def mistakes(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        config.read("c.yaml", overrides)
    return [str(p) for p in error.value.problems]


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        (["data={source: webdataset, shards: '/s/{0..3}.tar'}"], {}),
        (["data.source=webdataset", "data.shards=/s/{0..3}.tar"], {}),
        (["data.shards=/s/{0..3}.tar", "data.source=webdataset"], {}),
        (["data.shards=/s/{0..3}.tar"], {"data": {"source": "webdataset"}}),
        ([], {"data": {"source": "webdataset", "shards": SHARDS}}),
        ([], {"data.source": "webdataset", "data.shards": SHARDS}),
        (["data.source=tfrecord", "data.source=webdataset", "data.shards=/s/{0..3}.tar"], {}),
    ],
    ids=str,
)
def test_another_source_replaces_all_of_data(overrides: list[str], changes: dict[str, Any]) -> None:
    found = config.read("c.yaml", overrides, **changes)
    assert found.source_name == "webdataset"
    assert found.source.model_dump(exclude_unset=True) == {"shards": SHARDS}


def test_also_of_a_shipped_config() -> None:
    data = {"source": "file_list", "file": "list.csv"}
    found = config.read("lfw", data=data).source
    assert found.model_dump(exclude_unset=True) == {"file": Path("list.csv")}


SAME = [["data={source: folder, root: /y}"], ["data.source=folder", "data.root=/y"]]


@pytest.mark.parametrize("overrides", SAME, ids=str)
def test_the_same_source_keeps_the_rest(overrides: list[str]) -> None:
    source = config.read("c.yaml", overrides).source
    said = {"root": Path("/y"), "fetch": "lfw", "stand_in": 3}
    assert source.model_dump(exclude_unset=True) == said


def test_what_the_other_source_lacks_or_does_not_know_is_said_of_the_override() -> None:
    lacks, unknown = mistakes("data.source=webdataset", "data.root=/y")
    assert lacks.startswith("'data.source=webdataset': data.shards: missing; write 'shards: ...'")
    assert unknown.startswith("'data.root=/y': data.root: unknown key; known: ")
    (misspelt,) = mistakes("data.source=webdatset", "data.shards=x")
    assert misspelt.startswith("'data.source=webdatset': unknown source 'webdatset'; did you mean")
    assert mistakes("data.source=3")[0].startswith("'data.source=3': data.source is 3, but")


def test_layers_of_changes_follow_one_another() -> None:
    shards: list[config.Override] = [("data", {"source": "webdataset", "shards": SHARDS})]
    folder: list[config.Override] = [("data.root", "/y"), ("data.source", "folder")]
    found = config.read_with("c.yaml", shards, ["batch_size=3"], folder)
    assert found.source.model_dump(exclude_unset=True) == {"root": Path("/y")}
    assert found.loader.batch_size == 3
