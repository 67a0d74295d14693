"""No thread that works for a GPU makes a context on another one: hundreds of MiB of each rank."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe import config as configs
from gpupipe.dataset.index import build_empty
from gpupipe.engines.base import Job
from gpupipe.engines.cpu.engine import GpuCopier
from gpupipe.engines.dataloader.samples import Samples
from gpupipe.engines.dataloader.workers import Workers
from gpupipe.engines.last_steps import BatchFinisher, find_tail, leave_steps
from gpupipe.sampling.sampler import Plan
from helpers.fake_cuda import FakeCuda
from helpers.fake_gpu import FakeGpu

SECOND = torch.device("cuda", 1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def in_thread(work: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Call `work` with a batch in page-locked memory, in a thread of its own."""

    def run() -> None:
        with FakeGpu():
            batch = {"image": torch.empty(4, 3, 20, 30), "id": torch.arange(4)}
            work({name: tensor.pin_memory() for name, tensor in batch.items()})

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


def test_the_copies_of_the_cpu_engine(cuda: FakeCuda) -> None:
    in_thread(GpuCopier(SECOND).start)
    assert cuda.contexts == {1}


def test_the_steps_and_copies_of_a_batch_that_was_received(cuda: FakeCuda) -> None:
    config = configs.read({"data": {"source": "folder", "root": "/nowhere"}, "pipeline": "affine"})
    job = Job(build_empty(), config.pipeline, config.loader, 1)
    finish = BatchFinisher(leave_steps(job, find_tail(config.pipeline)), 1)
    in_thread(lambda batch: finish(batch, Plan(0, np.arange(4), 0, last=False)))
    assert (cuda.contexts, cuda.waits) == ({1}, [1])


@pytest.mark.parametrize("workers", [0, 1])
def test_the_thread_that_page_locks_for_the_dataloader(
    faces: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    def pin_memory(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
        cuda.allocate_page_locked()
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    config = {"data": {"source": "folder", "root": faces}, "pipeline": "affine"}
    checked = configs.read(config, engine="dataloader", workers=workers, batch_size=2)
    index = checked.source.index()
    job = Job(index, checked.pipeline, checked.loader, 1)
    started = Workers(job, Samples(job), workers, SECOND)
    results = started.iterate(iter([Plan(0, np.arange(2), 2, False)]))
    assert next(results)[1].fields is not None
    results.close()
    started.close()
    assert cuda.contexts == {1}


def test_streams_are_entered_through_one_function_alone() -> None:
    package = Path(gpupipe.__file__).parent
    entered = [
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        if re.search(r"cuda\.(stream|set_stream|set_device)\(", file.read_text(encoding="utf-8"))
    ]
    assert entered == ["runtime/memory.py"]
