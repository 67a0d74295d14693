"""DALI's files are read as far ahead as `prefetch` says, whatever the graph has taken."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

import gpupipe
from gpupipe import config as configs
from gpupipe.dataset.file_columns import FileColumn
from gpupipe.engines.base import Job
from gpupipe.engines.dali.lowering import Lowering
from gpupipe.engines.dali.reader import FileReader
from gpupipe.sampling.sampler import Plan, Sampler

COUNT = 24
BATCH = 2
LIMIT = 60.0
"""Seconds; each of these tests takes a second or two."""


@pytest.fixture(autouse=True)
def fifos_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The FIFOs of these tests stand for slow files: the reader must not tell them apart."""
    monkeypatch.setattr(FileColumn, "find_irregular", lambda self, rows: [])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "one").mkdir()
    files = [tmp_path / "one" / f"{n:02d}.png" for n in range(COUNT)]
    for n, file in enumerate(files):
        Image.new("RGB", (10, 8), (n, n, n)).save(file)
    return files


def job(files: list[Path], prefetch: int) -> Job:
    config = configs.read(
        {"data": {"source": "folder", "root": str(files[0].parents[1])}, "pipeline": ["decode"]},
        batch_size=BATCH, prefetch=prefetch, threads=1, device="cpu", shuffle=False,
    )  # fmt: skip
    return Job(config.source.index(), config.pipeline, config.loader, 1)


def plans(job: Job, taken: list[int]) -> Iterator[Plan]:
    """All plans of an epoch; the number of each goes into `taken` when it is taken."""
    sampler = Sampler(len(job.index), BATCH, shuffle=False, seed=0, last_batch="partial")
    for number, plan in enumerate(sampler.begin()):
        taken.append(number)
        yield plan


@contextmanager
def fifo(file: Path) -> Iterator[threading.Event]:
    """In place of a file, a FIFO: opening it waits for its other end.

    The event is set when DALI has begun to read it, which then fails.
    """
    file.unlink()
    os.mkfifo(file)
    begun = threading.Event()

    def wait() -> None:
        os.close(os.open(file, os.O_WRONLY))
        begun.set()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield begun
    finally:
        if not begun.is_set():  # or the thread would wait for ever
            os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK))
        thread.join(LIMIT)
        assert not thread.is_alive()


@pytest.mark.parametrize("prefetch", [1, 4])
def test_as_many_reads_are_under_way_as_prefetch_says(files: list[Path], prefetch: int) -> None:
    """None of them was asked for yet: the last of them is begun, and no more."""
    wanted = job(files, prefetch)
    taken: list[int] = []
    reader = FileReader(Lowering(wanted, "cpu", False), {}, False)
    with fifo(files[(prefetch - 1) * BATCH]) as begun:
        reader.start(plans(wanted, taken))
        assert begun.wait(LIMIT), f"read {prefetch} was not begun"
        assert taken == list(range(prefetch))
        for number in range(prefetch - 1):
            assert next(reader).error is None, "those before it are there"
            assert taken == list(range(prefetch + number + 1)), (
                "and others are begun in their place"
            )
    assert next(reader).error is not None, "a FIFO is no image"
    reader.drop()
    assert taken == list(range(2 * prefetch))


def test_what_was_read_ahead_is_dropped_unseen(files: list[Path]) -> None:
    wanted = job(files, 3)
    reader = FileReader(Lowering(wanted, "cpu", False), {}, False)
    reader.start(plans(wanted, []))
    first = next(reader)
    reader.drop()
    assert list(reader) == []
    reader.start(plans(wanted, []))
    again = list(reader)
    assert len(again) == COUNT // BATCH
    assert again[0].plan.ids.tolist() == first.plan.ids.tolist() == [0, 1]
    assert [read.error for read in again] == [None] * len(again)


def test_a_read_is_begun_long_before_its_batch_is_needed(files: list[Path]) -> None:
    """With prefetch 4, the ninth batch is read while the first is handed over: a slow read may take
    as long as four batches.
    """
    config = {
        "data": {"source": "folder", "root": str(files[0].parents[1])},
        "pipeline": ["decode"],
    }
    options = {"engine": "dali", "device": "cpu", "prefetch": 4, "threads": 1}
    with (
        gpupipe.load(config, batch_size=BATCH, shuffle=False, **options) as loader,
        fifo(files[8 * BATCH]) as begun,
    ):
        next(iter(loader))
        assert begun.wait(LIMIT), "the ninth read was not begun"
