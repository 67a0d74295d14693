"""gpupipe cache, as a user calls it."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpupipe import config as configs
from gpupipe.cache.cache_folder import prepare_folder
from gpupipe.cli import cache
from gpupipe.cli.app import main
from gpupipe.decoded_cache.location import list_files
from gpupipe.errors import DataError
from gpupipe.sources.remote import Remote
from helpers.decoded_caches import DISK, MEMORY, epochs_of, the_file
from helpers.decoded_caches import shared_memory as shared_memory  # noqa: PLC0414  # a fixture
from helpers.forked_python import executable
from helpers.loaders import load

pytestmark = pytest.mark.usefixtures("forked_executable")


@pytest.fixture
def config(faces: Path, tmp_path: Path) -> str:
    """The config of a cache of the faces: two thirds fit into it."""
    path = tmp_path / "remote.yaml"
    path.write_text(
        f"data:\n  source: remote\n  url: file://{faces}\n  cache: {{dir: {tmp_path}/cache, "
        f"max_bytes: 900kB, shard_size: 60kB, workers: 1, low_water: 0.8}}\n"
        "pipeline: [decode]\nloader: {device: cpu, batch_size: 4}\n"
    )
    return str(path)


def gpupipe(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cache", *arguments])


def status(config: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gpupipe("status", config, "--json", "-").stdout)
    return found


def test_fill_status_evict_and_fill_again(config: str, tmp_path: Path) -> None:
    empty = status(config)
    assert (empty["rows"], empty["samples"], empty["hit_rate"]) == (None, 0, None)
    filled = gpupipe("fill", config)
    assert filled.exit_code == 0, filled.output
    found = status(config)
    assert 30 < found["samples"] < 60 == found["rows"]
    assert f"{found['samples']} samples fetched, " in filled.stdout
    assert (
        f"{found['samples']} of 60 samples in {found['shards']} shards, generation "
        f"{found['generation']}: {tmp_path}/cache" in filled.stdout
    )
    text = gpupipe("status", config).stdout
    assert (
        f"generation   {found['generation']}: {found['samples']} of 60 samples in "
        f"{found['shards']} shards; 0 evicted so far" in text
    )
    assert "hit rate     no epoch yet" in text
    evicted = gpupipe("evict", config)
    assert evicted.exit_code == 0
    assert status(config)["bytes"] <= 720_000
    assert gpupipe("evict", config, "--to", "0").exit_code == 0
    assert status(config)["samples"] == 0
    assert (
        gpupipe("fill", config, "data.cache.max_bytes=4MB")
        .stdout.splitlines()[1]
        .startswith("the whole data set in ")
    )


def test_verify_names_a_damaged_shard_and_fetches_it_again(config: str, tmp_path: Path) -> None:
    gpupipe("fill", config)
    shard, table = (
        tmp_path / "cache" / "shards" / "00000002.tar",
        tmp_path / "cache" / "tables" / "00000003.npy",
    )
    whole, rows = shard.read_bytes(), table.read_bytes()
    shard.write_bytes(whole[:5000] + b"X" + whole[5001:])
    table.write_bytes(b"X")
    found = gpupipe("verify", config)
    assert found.exit_code == 0, found.output
    assert f"{shard}: its checksum is another than when it was published" in found.stdout
    assert "1 damaged, 1 of them fetched again" in found.stdout
    assert shard.read_bytes() == whole
    assert table.read_bytes() == rows
    assert "0 damaged" in gpupipe("verify", config).stdout


def test_verify_gives_up_what_cannot_be_fetched_again(config: str, tmp_path: Path) -> None:
    gpupipe("fill", config)
    before = status(config)
    for folder, name in (
        ("shards", "00000001.tar"),
        ("tables", "00000001.npy"),
        ("shards", "00000002.tar"),
    ):
        (tmp_path / "cache" / folder / name).write_bytes(b"X")
    found = gpupipe("verify", config, "data.url=file:///nowhere", "data.cache.retries=0")
    assert found.exit_code == 1
    assert "the cache of another data set" in found.stderr
    (tmp_path / "cache" / "dataset.json").write_text(
        json.dumps(
            json.loads((tmp_path / "cache" / "dataset.json").read_text())
            | {"url": "file:///nowhere"}
        )
    )
    found = gpupipe("verify", config, "data.url=file:///nowhere", "data.cache.retries=0")
    assert found.exit_code == 1
    assert "00000002.tar: cannot be fetched again: " in found.stderr
    assert status_of_nowhere(config)["shards"] == before["shards"] - 2


def status_of_nowhere(config: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        gpupipe("status", config, "--json", "-", "data.url=file:///nowhere").stdout
    )
    return found


def test_serving_goes_on_until_it_is_ended(config: str) -> None:
    serving = subprocess.Popen(
        [executable(), "-m", "gpupipe", "cache", "fill", config, "--serve"],
        stderr=subprocess.PIPE,
    )
    end = time.monotonic() + 30
    while not any(
        s["state"].startswith("waiting: the cache is full") for s in status(config)["workers"]
    ):
        assert time.monotonic() < end
        time.sleep(0.1)
    text = gpupipe("status", config).stdout
    assert "over 1 worker" in text
    assert "waiting: the cache is full, and all that may be evicted is in use" in text
    (pid,) = [s["pid"] for s in status(config)["workers"]]
    serving.kill()
    serving.wait()
    assert serving.stderr
    serving.stderr.close()
    while status(config)["workers"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    process = Path(f"/proc/{pid}/stat")
    assert not process.exists() or process.read_text().rpartition(")")[2].split()[0] == "Z"


def test_mistakes_are_messages(config: str, tmp_path: Path) -> None:
    for command in ("fill", "status", "evict", "verify"):
        found = gpupipe(command, "lfw")
        assert found.exit_code == 2
        assert "data.source is 'folder', but only 'remote' has a cache" in found.stderr
    assert "is no size, such as 100GB" in gpupipe("evict", config, "--to", "plenty").stderr
    found = gpupipe("status", config, "data.cache.max_bytes=a lot")
    assert found.exit_code == 2
    assert (
        "data.cache.max_bytes is 'a lot', but should be bytes: a number, or one such as "
        "64MB, 500GB or 2TiB" in found.stderr
    )
    found = gpupipe(
        "fill", config, f"data.url=file://{tmp_path}/nothing", f"data.cache.dir={tmp_path}/other"
    )
    assert found.exit_code == 1
    assert "nothing: no such folder: set data.url" in found.stderr


def test_samples_that_cannot_be_fetched_are_told(config: str, faces: Path, tmp_path: Path) -> None:
    names = [str(p.relative_to(faces)) for p in sorted(faces.glob("*/*.jpg"))[:5]]
    (tmp_path / "m.csv").write_text("\n".join(["path", *names, "gone/1.jpg"]))
    found = gpupipe(
        "fill", config, f"data.manifest={tmp_path}/m.csv", "data.label=null", "data.cache.retries=0"
    )
    assert found.exit_code == 1
    assert "5 of 6 samples in 2 shards" in found.stdout
    assert "error: 1 sample could not be fetched, among them:\ngone/1.jpg: " in found.stderr


def test_a_shard_that_several_workers_cannot_fetch_counts_once(tmp_path: Path) -> None:
    config = tmp_path / "remote.yaml"
    config.write_text(
        f"data:\n  source: remote\n  url: file://{tmp_path}\n  shards: '{{0..5}}.tar'\n"
        f"  cache: {{dir: {tmp_path}/cache, max_bytes: 1MB, workers: 2}}\npipeline: [decode]\n"
    )
    found = gpupipe("fill", str(config))
    assert found.exit_code == 1
    assert "0 samples in 0 of 6 shards" in found.stdout
    assert "error: 6 shards could not be fetched, among them:\n" in found.stderr


def test_what_one_worker_could_not_fetch_and_another_one_did_is_no_failure(config: str) -> None:
    large = "data.cache.max_bytes=9MB"
    assert "the whole data set" in gpupipe("fill", config, large).stdout
    source = configs.read(config, [large]).source
    assert isinstance(source, Remote)
    folder = prepare_folder(source.cache, source.dataset)
    outcome = {"bytes": 0, "failed": 1, "failures": ["a.jpg: 500"], "lost": {}}
    cache._print_result(folder, [outcome], 1.0, 0, 60)
    with pytest.raises(DataError, match=r"^1 sample could not be fetched, among them:\na\.jpg"):
        cache._print_result(folder, [outcome] * 2, 1.0, 0, 61)


# --- caches of decoded images

OPTIONS = {"engine": "cpu", "threads": 2, "batch_size": 16}
PIPELINE = ["decode", {"resize": {"size": 64}}, {"random_crop": {"size": 32}}]


@pytest.fixture
def filled(faces: Path) -> None:
    for options in (MEMORY, DISK):
        epochs_of(load(faces, PIPELINE, data={"cache_decoded": options}, **OPTIONS), 1)


def test_no_cache() -> None:
    assert "there are no caches" in gpupipe("list").stdout
    assert gpupipe("empty").stdout.startswith("0 caches of decoded images removed, 0 bytes")


def test_list(filled: None, faces: Path) -> None:
    text = gpupipe("list").stdout
    assert str(faces) in text
    assert '{"image": ["decode", "resize"]} by engine cpu' in text
    assert text.count("images       60") == 2
    (state,) = json.loads(gpupipe("list", "--where", "disk", "--json", "-").stdout)
    assert (state["where"], state["images"], state["max_bytes"]) == ("disk", 60, 200_000_000)
    assert 0 < state["used_bytes"] < 200_000_000
    assert not state["in_use"]


def test_empty(filled: None) -> None:
    assert gpupipe("empty", "--where", "memory").stdout.startswith(
        "1 cache of decoded images removed"
    )
    assert (len(list_files("memory")), len(list_files("disk"))) == (0, 1)
    assert gpupipe("empty").exit_code == 0
    assert not list_files("disk")


def test_a_cache_that_is_emptied_in_use_works_on(faces: Path) -> None:
    with load(faces, PIPELINE, data={"cache_decoded": MEMORY}, **OPTIONS) as loader:
        first = [batch["id"].tolist() for batch in loader]
        assert "by a running process" in gpupipe("list").stdout
        assert "1 of them in use" in gpupipe("empty").stdout
        assert len(list(loader)) == len(first)


def test_a_damaged_file_is_listed(filled: None) -> None:
    the_file("disk").write_bytes(b"damaged")
    assert "the next loader replaces it" in gpupipe("list", "--where", "disk").stdout
