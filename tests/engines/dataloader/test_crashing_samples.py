"""Samples that end the DataLoader worker that makes them: a real signal, in a real worker."""

import json
import os
from multiprocessing import active_children, connection, get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe.engines.base import Batch
from gpupipe.engines.dataloader.worker_death import find_dead_workers
from helpers.full_product import IS_FULL
from helpers.loaders import loading
from helpers.plugin import install

FRAGILE = """
import ctypes
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpupipe.pipeline.spec_checks import check_decoded
from gpupipe.pipeline.step import Step


class Fragile(Step):
    signal: str = "SIGSEGV"
    once: str = ""
    left_behind: str = ""

    def infer_spec(self, given):
        return check_decoded(given)

    def torch(self, image, p):
        if image.float().mean() > 250:
            self.die()
        return image

    def die(self):
        if self.once:
            if Path(self.once).exists():
                return
            Path(self.once).touch()
        if self.left_behind:
            Path(f"/dev/shm/torch_{os.getpid()}_{self.left_behind}").write_bytes(bytes(100))
        if self.signal == "SIGSEGV":
            ctypes.string_at(0)
        os.kill(os.getpid(), getattr(signal, self.signal))
"""
SIDE, COUNT, BATCH = 32, 24, 4
STEPS: list[Any] = ["decode", {"random_crop": {"size": 24}}, "random_horizontal_flip"]


@pytest.fixture(autouse=True)
def _forked_suspects(request: pytest.FixtureRequest) -> None:
    """Suspects are tried in a fork of a Python that has imported torch, but for one test."""
    if "spawn" not in request.node.name:
        request.getfixturevalue("forked_executable")
        request.getfixturevalue("forked_workers")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """24 images of noise, and an installed package with a step that dies of white ones."""
    (tmp_path / "packages").mkdir()
    monkeypatch.syspath_prepend(
        install(tmp_path / "packages", "fragile", FRAGILE, fragile="Fragile")
    )
    (tmp_path / "data" / "class").mkdir(parents=True)
    for n in range(COUNT):
        levels = np.random.default_rng(n).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
        Image.fromarray(levels).save(path(tmp_path / "data", n))
    return tmp_path / "data"


def path(root: Path, n: int) -> Path:
    return root / "class" / f"{n:02}.png"


def whiten(root: Path, *numbers: int) -> None:
    for n in numbers:
        Image.new("RGB", (SIDE, SIDE), "white").save(path(root, n))


load_in_order = loading(
    STEPS,
    engine="dataloader",
    workers=2,
    batch_size=BATCH,
    shuffle=False,
    max_bad=0.5,
)


def load_fragile(root: Path, steps: list[Any], **options: Any) -> gpupipe.Loader:
    return load_in_order(root, steps, **{"quarantine": root.parent / "bad.jsonl", **options})


def fragile(**options: str) -> list[Any]:
    return [*STEPS, {"fragile": options}]


def without(batches: list[Batch], bad: tuple[int, ...]) -> list[Batch]:
    """The batches without some samples, and those that are left with none."""
    kept = [
        (batch, [n for n, id in enumerate(batch["id"].tolist()) if id not in bad])
        for batch in batches
    ]
    return [{name: tensor[rows] for name, tensor in batch.items()} for batch, rows in kept if rows]


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    assert [b["id"].tolist() for b in found] == [b["id"].tolist() for b in expected]
    assert all(
        torch.equal(a[name], b[name]) for a, b in zip(found, expected, strict=True) for name in b
    )


def quarantined(root: Path) -> list[tuple[str, str]]:
    file = root.parent / "bad.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [(line["path"], line["reason"]) for line in lines]


@pytest.mark.parametrize(
    ("method", "workers", "bad"),
    [
        ("fork", 2, (0, 9, 10)),
        ("forkserver", 1, (5,)),
        ("fork", 1, (12, 13, 14, 15)),
        ("forkserver", 1, (12, 13, 14, 15)),
        ("spawn", 1, (5,)),
    ][: None if IS_FULL else 2],
)
def test_skip_leaves_out_what_kills_workers_and_nothing_else(
    root: Path, method: str, workers: int, bad: tuple[int, ...]
) -> None:
    """In the order and with the draws of a run that meets no such step."""
    whiten(root, *bad)
    with load_fragile(root, STEPS, workers=0, shuffle=True) as loader:
        expected = [without(list(loader), bad) for _ in range(2)]
    with load_fragile(
        root,
        fragile(),
        workers=workers,
        shuffle=True,
        multiprocessing_context=method,
        on_error="skip",
    ) as loader:
        for epoch in expected:
            assert_same(list(loader), epoch)
        assert len(loader.engine.quarantine) == len(bad)
    listed = quarantined(root)
    assert sorted(p for p, _ in listed) == [str(path(root, n)) for n in bad]
    assert all("SIGSEGV" in reason for _, reason in listed)
    assert not active_children()


@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL"])
def test_raise_names_the_file_and_the_signal(root: Path, signal: str) -> None:
    whiten(root, 22)
    with (
        load_fragile(root, fragile(signal=signal)) as loader,
        pytest.raises(gpupipe.SampleError, match=rf"22\.png.*{signal}") as caught,
    ):
        list(loader)
    assert caught.value.path == str(path(root, 22))
    assert not quarantined(root)
    assert not active_children()


def test_a_crash_that_no_sample_repeats_is_no_samples_fault(root: Path, tmp_path: Path) -> None:
    whiten(root, 22)
    with load_fragile(
        root, fragile(once=str(tmp_path / "once")), on_error="skip", workers=1, prefetch=1
    ) as loader:
        with pytest.raises(
            gpupipe.EngineError, match=r"died of SIGSEGV.*no sample is to blame.*survived 4 samples"
        ):
            list(loader)
        assert len(loader.engine.quarantine) == 0
    assert not quarantined(root)


def test_a_worker_that_is_killed_from_outside_is_not_a_samples_fault(root: Path) -> None:
    whiten(root, 22)
    with (
        load_fragile(root, fragile(signal="SIGKILL"), on_error="skip") as loader,
        pytest.raises(gpupipe.EngineError, match=r"SIGKILL.*out of memory"),
    ):
        list(loader)
    assert not quarantined(root)


def wait_for_the_end_of_children() -> None:
    while children := active_children():
        assert connection.wait([child.sentinel for child in children], 60)


def test_a_worker_that_dies_during_a_training_step_does_not_interrupt_it(root: Path) -> None:
    """torch raises from SIGCHLD wherever the main thread is."""
    whiten(root, 5)
    found: list[int] = []
    with load_fragile(root, fragile(), workers=1, prefetch=1, on_error="skip") as loader:
        for batch in loader:
            if not found:
                wait_for_the_end_of_children()
            found += batch["id"].tolist()
    assert found == [n for n in range(COUNT) if n != 5]


def test_a_worker_that_dies_of_what_was_given_up_costs_the_next_epoch_nothing(root: Path) -> None:
    whiten(root, 5)
    with load_fragile(root, fragile(), workers=1, on_error="skip") as loader:
        next(iter(loader))
        found = [i for batch in loader for i in batch["id"].tolist()]
    assert found == [n for n in range(COUNT) if n != 5]
    assert [p for p, _ in quarantined(root)] == [str(path(root, 5))]


def test_the_shared_memory_of_a_dead_worker_is_removed(root: Path) -> None:
    """torch names it for the milliseconds in which it is allocated; a step stands in for that
    moment.
    """
    mark = f"left{os.getpid()}"
    whiten(root, 5)
    with (
        load_fragile(root, fragile(signal="SIGKILL", left_behind=mark), workers=1) as loader,
        pytest.raises(gpupipe.EngineError),
    ):
        list(loader)
    assert not list(Path("/dev/shm").glob(f"torch_*_{mark}"))


def test_a_connection_that_ends_before_its_worker_does_waits_for_the_exit_code() -> None:
    """The kernel closes files first: without the wait 21 of 40 deaths were not told."""
    for _ in range(20):
        worker = get_context("fork").Process(target=os.abort)
        worker.start()
        assert [
            d.signal
            for d in find_dead_workers(SimpleNamespace(_workers=[worker]), ConnectionError())
        ] == ["SIGABRT"]
