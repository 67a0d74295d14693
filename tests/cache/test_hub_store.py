"""Data sets of a hub of Hugging Face (hf://) through the cache: a hub on loopback has them."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.cache.settings import DataSet
from gpupipe.cache.store import Store
from helpers import forked_python, hub
from helpers.cached_loading import Config, ids, load
from helpers.stored_shards import NAMES, cached, write_wide_parquets

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
NAME = NAMES[0]
ADVICE = r".*run `hf auth login`, or set HF_TOKEN or data.storage_options.token"


@pytest.fixture
def tar_hub(tars: Path, tmp_path: Path) -> Iterator[hub.Hub]:
    """A hub with tars of faces, at their revision main."""
    shutil.copytree(tars, tmp_path / "main")
    with hub.serve() as served:
        served.revisions["me/faces", "main"] = tmp_path / "main"
        yield served


@pytest.fixture
def data(tar_hub: hub.Hub) -> dict[str, Any]:
    """The data set of the tars."""
    options = {"endpoint": tar_hub.url}
    return {"url": "hf://datasets/me/faces", "shards": "**/*.tar", "storage_options": options}


def count_sent(served: hub.Hub) -> int:
    return sum(end - begin for _, begin, end in served.sent)


def test_tars_come_once_and_a_resumed_run_goes_on(
    config: Config, tar_hub: hub.Hub, tars: Path, data: dict[str, Any]
) -> None:
    settings = config(**data, epoch="full")
    with load(settings) as loader:
        labels = [label for batch in islice(loader, 5) for label in batch["label"].tolist()]
        state = loader.state_dict()
    assert count_sent(tar_hub) == sum((tars / name).stat().st_size for name in NAMES)
    tar_hub.sent.clear()
    with load(settings) as loader:
        loader.load_state_dict(state)
        labels += [label for batch in loader for label in batch["label"].tolist()]
        assert sorted(labels) == list(range(60))
        assert len(ids(loader)) == 60
    assert not tar_hub.sent


def test_only_the_columns_of_parquet_files_that_are_needed_come(
    config: Config, tmp_path: Path, faces: Path, data: dict[str, Any], tar_hub: hub.Hub
) -> None:
    images = [path.read_bytes() for path in sorted(faces.glob("*/*.jpg"))[:20]]
    root = tmp_path / "parquet"
    (root / "train").mkdir(parents=True)
    write_wide_parquets(root, ["train/0.parquet", "train/1.parquet"], images)
    tar_hub.revisions["me/faces", "main"] = root
    settings = config(**data | {"shards": "**/*.parquet"}, epoch="full", max_bytes="4MB")
    with load(settings) as loader:
        for batch in loader:
            for id, label in zip(batch["id"].tolist(), batch["label"].tolist(), strict=True):
                assert bytes(loader.index.read(id)) == images[label]
    stored = sum(file.stat().st_size for file in root.glob("*/*.parquet"))
    assert sum(map(len, images)) < count_sent(tar_hub) < 0.4 * stored


@pytest.mark.parametrize("revision", ["main", "v2", "refs/pr/1"])
def test_a_revision_is_that_of_the_url(
    make: Any, tar_hub: hub.Hub, tmp_path: Path, data: dict[str, Any], revision: str
) -> None:
    for n, name in enumerate(("v2", "refs/pr/1")):
        folder = tar_hub.revisions["me/faces", name] = tmp_path / f"revision{n}"
        (folder / "a").mkdir(parents=True)
        shutil.copy(tmp_path / "main" / NAMES[n], folder / "a/one.tar")
    made = make(data | {"url": f"hf://datasets/me/faces@{revision}/a"})
    assert made.fill() == "complete"
    root = tar_hub.revisions["me/faces", revision]
    contents = {file.read_bytes() for file in root.glob("a/*.tar")}
    assert {file.read_bytes() for file in cached(made.folder).values()} == contents


@pytest.mark.parametrize("token", [None, hub.STRANGER])
def test_only_who_has_access_gets_files_of_a_gated_repository(
    make: Any, tar_hub: hub.Hub, data: dict[str, Any], token: str | None
) -> None:
    tar_hub.gated.add("me/faces")
    data["storage_options"]["token"] = token
    made, status = make(data), 403 if token else 401
    assert made.fill() == "failed"
    for name, reason in zip(
        NAMES,
        sorted(made.filler.statistics.failed.reasons.values(), key=lambda r: r[2:]),
        strict=True,
    ):
        assert re.match(rf"{name}: the store denies access \({status} .*gated repo{ADVICE}", reason)
    assert len(tar_hub.list_asked("resolve")) == len(NAMES)  # none was tried again
    data["storage_options"]["token"] = hub.MEMBER
    assert make(data).fill() == "complete"


def test_a_gated_repository_ends_the_first_epoch(
    config: Config, tar_hub: hub.Hub, data: dict[str, Any]
) -> None:
    tar_hub.gated.add("me/faces")
    said = f"nothing more can come, because the store refuses .*: the store denies access{ADVICE}"
    with load(config(**data, wait=9)) as loader, pytest.raises(gpupipe.DataError, match=said):
        ids(loader)


@pytest.mark.parametrize(
    ("url", "token", "said"),
    [
        ("datasets/me/none", None, "401"),
        ("datasets/me/none", hub.STRANGER, "repository not found"),
        ("datasets/me/faces@v3", None, "revision not found"),
        ("datasets/faces", None, "must be 'namespace/name'"),
        ("me/faces", None, "404"),  # of a model
    ],
)
def test_what_the_hub_does_not_list_is_said(
    make: Any, data: dict[str, Any], url: str, token: str | None, said: str
) -> None:
    data["url"], data["storage_options"]["token"] = f"hf://{url}", token
    with pytest.raises(gpupipe.DataError, match=f"^hf://{url}: cannot be listed: .*{said}{ADVICE}"):
        make(data)


def test_a_listing_has_what_came_since_the_last_one(
    tar_hub: hub.Hub, data: dict[str, Any], tmp_path: Path
) -> None:
    store = Store(DataSet(**data), 0, 5.0)
    before = store.list_files().keys()
    shutil.copy(tmp_path / "main" / NAME, tmp_path / "main/a/new.tar")
    assert store.list_files().keys() - before == {"a/new.tar"}


def test_a_file_that_was_changed_or_deleted_is_named(
    make: Any, data: dict[str, Any], tmp_path: Path
) -> None:
    made = make(data)
    changed, deleted = (tmp_path / "main" / name for name in NAMES[:2])
    changed.write_bytes(changed.read_bytes()[::-1])
    deleted.unlink()
    assert made.fill() == "failed"
    reasons = sorted(made.filler.statistics.failed.reasons.values())
    assert re.match(rf"{NAMES[0]}: changed since it was listed \(blob \w+, now \w+\)", reasons[0])
    assert reasons[1].startswith(f"{NAMES[1]}: the store does not have it")
    assert len(cached(made.folder)) == 4


def test_other_bytes_than_the_sha_256_says_are_not_taken(
    make: Any, data: dict[str, Any], tar_hub: hub.Hub
) -> None:
    made = make(data)
    tar_hub.garbled.add(Path(NAME).name)
    assert made.fill() == "failed"
    (reason,) = made.filler.statistics.failed.reasons.values()
    assert re.search(rf"{NAME}: other content came: its SHA256 is .* in place of", reason)
    tar_hub.garbled.clear()
    assert made.another().publish_shard() == "published"
    assert len(cached(made.folder)) == 6


def test_a_hub_that_stalls_is_not_waited_for(
    make: Any, data: dict[str, Any], tar_hub: hub.Hub
) -> None:
    made = make(data, timeout=0.3, retries=1)
    tar_hub.stalled.add(f"resolve/main/{NAME}")
    assert made.fill() == "failed"
    (reason,) = made.filler.statistics.failed.reasons.values()
    assert "it was not whole after 0.3 s (data.cache.timeout) (2 attempts)" in reason


def test_the_environment_says_where_the_hub_is_and_who_asks(
    tar_hub: hub.Hub, tmp_path: Path
) -> None:
    tar_hub.gated.add("me/faces")
    names = {"HF_ENDPOINT": tar_hub.url, "HF_TOKEN": hub.MEMBER, "HF_HOME": str(tmp_path / "home")}
    done = fill(tmp_path, "me/faces", "{}", **names)
    assert done.stdout.startswith("60 samples fetched"), done.stderr


def test_a_repository_that_is_missing_is_named_at_its_line(
    tar_hub: hub.Hub, tmp_path: Path
) -> None:
    done = fill(tmp_path, "me/none", f"{{endpoint: '{tar_hub.url}'}}")
    assert done.returncode == 1
    assert "error: hub.yaml:3:8: hf://datasets/me/none: cannot be listed: " in done.stderr


def fill(
    folder: Path, repository: str, options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `gpupipe cache fill`."""
    (folder / "hub.yaml").write_text(
        f"data:\n  source: remote\n  url: hf://datasets/{repository}\n  shards: '**/*.tar'\n"
        f"  storage_options: {options}\n"
        "  cache: {dir: cache, max_bytes: 2MB, workers: 1}\npipeline: [decode]\n"
    )
    command = ["-m", "gpupipe", "cache", "fill", "hub.yaml"]
    if not environment:
        return forked_python.run(command, cwd=folder)
    # A new Python, by its option -B: a forked one may have imported huggingface_hub, which reads
    # its environment at the import.
    return subprocess.run(
        [sys.executable, "-B", *command],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
