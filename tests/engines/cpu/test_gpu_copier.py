"""The CPU engine's way to a GPU: copies do not wait, and keep their memory until they end."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

from gpupipe import config as configs
from gpupipe.engines.base import Job
from gpupipe.engines.batch import BatchMemory, Block, new_block
from gpupipe.engines.cpu.engine import CpuEngine
from gpupipe.engines.cpu.gpu_copier import SourcesInUse
from gpupipe.runtime.memory import to_device
from helpers.fake_cuda import FakeCuda
from helpers.fake_gpu import GPU, FakeGpu

CACHE = {"where": "disk", "max_bytes": "100MB"}


class Copy:
    """A copy that ends when it is told to."""

    def __init__(self) -> None:
        self.has_ended = False

    def query(self) -> bool:
        return self.has_ended


def test_copies_do_not_wait_also_from_memory_that_is_not_page_locked() -> None:
    with FakeGpu():
        fields = {
            "image": torch.empty(4, 3, 20, 30).to(memory_format=torch.channels_last).pin_memory(),
            "mask": torch.empty(4, 1, 20, 30, dtype=torch.uint8),
        }
        copied = {name: to_device(tensor, GPU) for name, tensor in fields.items()}
        assert {name: (t.device, t.dtype, t.shape) for name, t in copied.items()} == {
            name: (GPU, t.dtype, t.shape) for name, t in fields.items()
        }
        assert copied["image"].stride() == fields["image"].stride()


def test_a_block_returns_only_after_its_copy() -> None:
    memory, sources, copies = BatchMemory(4), SourcesInUse(), [Copy(), Copy()]
    for copy in copies:
        sources.keep(copy, [memory.allocate((100,), torch.uint8)])
    gc.collect()
    copies[1].has_ended = True
    sources.drop_copied()
    assert (len(sources), memory.count_free()) == (2, 0), "copies of a stream end in order"
    copies[0].has_ended = True
    sources.drop_copied()
    gc.collect()
    assert (len(sources), memory.count_free()) == (0, 2)
    sources.keep(Copy(), [memory.allocate((100,), torch.uint8)])
    sources.clear()
    gc.collect()
    assert memory.count_free() == 2


def test_the_blocks_of_a_pool_are_made_by_its_function() -> None:
    sizes: list[int] = []

    def new(size: int) -> Block:
        sizes.append(size)
        return np.empty(size, np.uint8)

    memory = BatchMemory(1, new)
    for _ in range(3):
        memory.allocate((2, 5), torch.float32)
        gc.collect()
    assert sizes == [40]


@pytest.mark.parametrize("error", [None, "CUDA error: an illegal memory access was encountered"])
def test_close_hides_no_error_of_a_gpu_that_failed_and_closes_all(
    faces: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, error: str | None
) -> None:
    """The memory that a failed GPU used is kept: to free it would end the process."""
    cuda = FakeCuda(monkeypatch)
    data = {"source": "folder", "root": faces, "cache_decoded": CACHE}
    checked = configs.read({"data": data, "pipeline": "affine"}, engine="cpu")
    index, options = checked.source.index(), checked.source.cache_decoded
    job = Job(index, checked.pipeline, checked.loader, 1, cache_decoded=options)
    engine = CpuEngine(job, 1)
    engine._memory._new = new_block  # page-locked memory needs a GPU
    tensor = engine._memory.allocate((100,), torch.uint8)
    assert engine._copier is not None
    assert engine._cache is not None
    engine._copier._sources.keep(Copy(), [tensor])
    del tensor
    closed: list[int] = []
    monkeypatch.setattr(engine._cache._file, "close", lambda: closed.append(1))
    cuda.error = None if error is None else RuntimeError(error)
    engine.close()
    gc.collect()
    assert (cuda.waits, closed) == ([1], [1])
    assert len(engine._copier._sources) == (error is not None)
    engine._memory.allocate((100,), torch.uint8)
    gc.collect()
    assert engine._memory.count_free() == (error is not None)
