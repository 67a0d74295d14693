"""The CPU engine as a whole: its pixels, what runs where, what it refuses, and its way to a GPU."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe import config as configs
from gpupipe.engines.base import Job
from gpupipe.engines.cpu.engine import CpuEngine, GpuCopier
from gpupipe.runtime.batch_memory import BatchMemory, Block, new_block
from gpupipe.runtime.memory import to_device
from helpers import forked_python
from helpers.fake_cuda import FakeCuda
from helpers.fake_gpu import GPU, FakeGpu
from helpers.loaders import loading
from helpers.python_end import END
from helpers.reference import by_id

load = loading(engine="cpu", threads=2, batch_size=1)
REFERENCE: dict[str, Any] = {"engine": "dataloader", "workers": 0}
FLOATS: list[Any] = [
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
]
FLIPS = ["random_horizontal_flip", "random_vertical_flip"]
EXACT = [
    [{"random_resized_crop": {"size": 64}}, "random_horizontal_flip", *FLOATS],
    [{"resize": {"size": 64}}, {"center_crop": {"size": 60}}, *FLOATS],
    [{"resize": {"size": [50, 70], "interpolation": "bicubic"}}],
    [{"resize": {"size": [50, 70], "antialias": False}}, "random_horizontal_flip", *FLOATS],
    [{"resize": {"size": [50, 70]}}, {"center_crop": {"size": [60, 40]}}, *FLIPS, *FLOATS],
    [
        {"resize": {"size": [50, 70]}},
        {"center_crop": {"size": [60, 40]}},
        *FLIPS,
        {"random_invert": {"p": 1}},
    ],
    [{"random_crop": {"size": 200, "padding": 30, "fill": 9}}, "random_vertical_flip"],
]
"""Steps after which every pixel is torchvision's."""


def most(root: Path, steps: list[Any], **options: Any) -> float:
    """The largest difference to the reference over a few images of their own sizes."""
    with load(root, ["decode", *steps], **options) as loader:
        found = by_id(loader)
    with load(root, ["decode", *steps], **REFERENCE) as loader:
        expected = by_id(loader)
    assert found.keys() == expected.keys()
    for id, image in found.items():
        assert (image.dtype, image.shape) == (expected[id].dtype, expected[id].shape)
    return max(float((found[i].double() - expected[i].double()).abs().max()) for i in found)


@pytest.mark.parametrize("steps", EXACT, ids=str)
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_pixels_are_those_of_torchvision(
    few_photos: Path, steps: list[Any], memory_format: str
) -> None:
    assert most(few_photos, steps, memory_format=memory_format) == 0.0


@pytest.mark.parametrize("fill", [0, 100, [10, 20, 30]], ids=str)
@pytest.mark.parametrize("name", ["random_affine", "random_perspective"])
def test_a_warp_is_within_one_level_and_so_is_its_border(
    small_faces: Path, name: str, fill: Any
) -> None:
    options = {
        "random_affine": {"degrees": 30, "translate": [0.2, 0.2], "scale": [0.5, 2.0]},
        "random_perspective": {"p": 1, "distortion_scale": 0.5},
    }[name]
    step = {name: {**options, "fill": fill, "interpolation": "bilinear"}}
    assert 0 < most(small_faces, [step]) <= 1.0
    assert most(small_faces, [step, FLOATS[0]]) <= 1.001 / 255


def test_aug_mix_agrees_on_average(few: Path) -> None:
    """Its operations follow one another, and equalize spreads a level of a warp."""
    steps = ["decode", "aug_mix"]
    with load(few, steps) as loader, load(few, steps, **REFERENCE) as other:
        found, expected = by_id(loader), by_id(other)
    assert all((found[i].float() - expected[i].float()).abs().mean() < 0.2 for i in expected)


def test_torch_keeps_its_threads_in_other_threads(few: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with load(few, ["decode"], batch_size=1) as loader:
            next(iter(loader))
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


SCRIPT = """
import sys
import gpupipe
config = {"data": {"source": "folder", "root": sys.argv[1]}, "pipeline": ["decode"]}
loader = gpupipe.load(config, engine="cpu", device="cpu", batch_size=1, threads=2)
batch = next(iter(loader))
print(batch["image"].dtype)
"""


def test_a_process_ends_with_an_open_iteration_and_its_batch(few: Path) -> None:
    done = forked_python.run(["-c", SCRIPT + END, few])
    assert (done.returncode, done.stdout, done.stderr) == (0, "torch.uint8\n", "")


def test_a_state_resumes_to_the_bit(faces: Path) -> None:
    steps = ["decode", {"random_resized_crop": {"size": 40}}, "random_horizontal_flip", *FLOATS]
    with load(faces, steps, batch_size=7) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = loader.state_dict()
        expected = [batch["image"] for batch in iterator]
    with load(faces, steps, batch_size=7, threads=3, prefetch=5) as loader:
        loader.load_state_dict(state)
        found = [batch["image"] for batch in loader]
    assert len(found) == len(expected) > 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


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


def test_a_block_returns_only_after_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch)
    memory, copier, copies = BatchMemory(4), GpuCopier(torch.device("cuda", 1)), [Copy(), Copy()]
    for copy in copies:
        copier._sources.append((copy, [memory.allocate((100,), torch.uint8)]))
    gc.collect()
    copies[1].has_ended = True
    copier._drop_copied()
    assert (len(copier._sources), memory.count_free()) == (2, 0), "copies of a stream end in order"
    copies[0].has_ended = True
    copier._drop_copied()
    gc.collect()
    assert (len(copier._sources), memory.count_free()) == (0, 2)
    copier._sources.append((Copy(), [memory.allocate((100,), torch.uint8)]))
    assert copier.close()
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
    engine._copier._sources.append((Copy(), [tensor]))
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
