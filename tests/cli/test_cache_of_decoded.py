"""gpupipe cache list and empty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpupipe.cli.app import main
from gpupipe.decoded_cache.location import list_files
from helpers.decoded_caches import DISK, MEMORY, epochs_of, the_file
from helpers.decoded_caches import shared_memory as shared_memory  # noqa: PLC0414  # a fixture
from helpers.loaders import load

OPTIONS = {"engine": "cpu", "threads": 2, "batch_size": 16}
PIPELINE = ["decode", {"resize": {"size": 64}}, {"random_crop": {"size": 32}}]


def run_gpupipe(*words: str) -> str:
    result = CliRunner().invoke(main, ["cache", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.fixture
def filled(faces: Path) -> None:
    for options in (MEMORY, DISK):
        epochs_of(load(faces, PIPELINE, data={"cache_decoded": options}, **OPTIONS), 1)


def test_no_cache() -> None:
    assert "there are no caches" in run_gpupipe("list")
    assert run_gpupipe("empty").startswith("0 caches of decoded images removed, 0 bytes")


def test_list(filled: None, faces: Path) -> None:
    text = run_gpupipe("list")
    assert str(faces) in text
    assert '{"image": ["decode", "resize"]} by engine cpu' in text
    assert text.count("images       60") == 2
    (state,) = json.loads(run_gpupipe("list", "--where", "disk", "--json"))
    assert (state["where"], state["images"], state["max_bytes"]) == ("disk", 60, 200_000_000)
    assert 0 < state["used_bytes"] < 200_000_000
    assert not state["in_use"]


def test_empty(filled: None) -> None:
    assert run_gpupipe("empty", "--where", "memory").startswith("1 cache of decoded images removed")
    assert (len(list_files("memory")), len(list_files("disk"))) == (0, 1)
    run_gpupipe("empty")
    assert not list_files("disk")


def test_a_cache_that_is_emptied_in_use_works_on(faces: Path) -> None:
    with load(faces, PIPELINE, data={"cache_decoded": MEMORY}, **OPTIONS) as loader:
        first = [batch["id"].tolist() for batch in loader]
        assert "by a running process" in run_gpupipe("list")
        assert "1 of them in use" in run_gpupipe("empty")
        assert len(list(loader)) == len(first)


def test_a_damaged_file_is_listed(filled: None) -> None:
    the_file("disk").write_bytes(b"damaged")
    assert "the next loader replaces it" in run_gpupipe("list", "--where", "disk")
