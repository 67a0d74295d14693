import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.runtime.function_draws import join_seeds, split_seeds
from gpupipe.runtime.function_pool import FunctionPool
from gpupipe.runtime.installation import find_extension
from helpers import user_functions
from helpers.loaders import loading
from helpers.reference import by_id

kernels = find_extension()
pytestmark = [
    pytest.mark.skipif(kernels is None, reason="the extension is not built"),
    pytest.mark.usefixtures("forked_in_module"),
]
SEEDS = np.array([3, 2**53 - 1, 4, 5], np.int64)
load = loading(batch_size=8, seed=3, engine="cpu", threads=2)


@pytest.fixture(scope="module")
def drawing(forked_in_module: None) -> Iterator[FunctionPool]:
    yield from open_pool("draws_of_all", 2)


def open_pool(name: str, count: int = 1, timeout: float = 60) -> Iterator[FunctionPool]:
    pool = FunctionPool(f"helpers.user_functions:{name}", {}, None, count, timeout)
    yield pool
    pool.close()


def make_stage(pool: FunctionPool, *output: int) -> Any:
    """Return the stage; the output is [channels, bytes of a value, height, width]."""
    return kernels.call_stage(pool.open_native(), SEEDS, '"image"', output or (3, 1, 0, 0))


def draw(channels: int, dtype: str, low: int = 100) -> Any:
    random = np.random.default_rng(channels)
    return random.integers(low, low + 100, (33, 47, channels)).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_it_returns_what_a_call_by_python_returns(
    drawing: FunctionPool, channels: int, dtype: str
) -> None:
    image = draw(channels, dtype)
    stage = make_stage(drawing, channels, image.itemsize, 0, 0)
    for row, seed in enumerate(SEEDS.tolist()):
        returned = np.asarray(kernels.run_stage(stage, row, image))
        expected = drawing.call(torch.from_numpy(image).permute(2, 0, 1), "image", seed)
        assert np.array_equal(returned, expected.permute(1, 2, 0))


def test_an_output_of_another_size_and_dtype() -> None:
    image = draw(3, "uint8")
    for pool in open_pool("halve"):
        returned = kernels.run_stage(make_stage(pool, 1, 4, 17, 24), 0, image)
        assert np.array_equal(returned, image[::2, ::2, :1].astype(np.float32) / 255)
        assert kernels.run_stage(make_stage(pool, 1, 4, 17, 23), 0, image) is None
        assert kernels.run_stage(make_stage(pool, 1, 1, 17, 24), 0, image) is None


def test_a_call_that_fails_is_left_to_python() -> None:
    names = [function.__name__ for function in user_functions.MISBEHAVIOURS]
    for pool in open_pool("misbehave", timeout=1):
        for name in ("refuse_dark", "fork_if_dark", "clone", "exit_if_dark", "hang_if_dark"):
            image = np.full((4, 5, 3), names.index(name), np.uint8)
            stage = make_stage(pool)
            has_process = name not in ("exit_if_dark", "hang_if_dark")
            assert (kernels.run_stage(stage, 0, image) is None) == (name != "clone"), name
            light = np.full((4, 5, 3), names.index("clone"), np.uint8)
            assert (kernels.run_stage(stage, 0, light) is not None) == has_process, name


def test_threads_share_the_processes(drawing: FunctionPool) -> None:
    stage, image = make_stage(drawing), draw(3, "uint8")
    alone = [np.asarray(kernels.run_stage(stage, row, image)) for row in range(4)]
    with ThreadPoolExecutor(4) as threads:
        together = threads.map(lambda n: kernels.run_stage(stage, n % 4, image), range(40))
        for n, returned in enumerate(together):
            assert np.array_equal(returned, alone[n % 4])


@pytest.mark.parametrize(
    ("seeds", "output"),
    [(SEEDS.astype(np.int32), (3, 1, 0, 0)), (SEEDS, (5, 1, 0, 0)), (SEEDS, (3, 2, 0, 0))],
)
def test_wrong_arguments(drawing: FunctionPool, seeds: Any, output: Any) -> None:
    processes = drawing.open_native()
    with pytest.raises(ValueError, match=r"is not|no image"):
        kernels.call_stage(processes, seeds, '"image"', output)


def test_a_pool_that_has_ended_is_left_to_python() -> None:
    read, write = os.pipe()
    pipes, memory = np.full((1, 2), -1, np.int32), np.zeros(9, np.uint8)
    processes = None, read, write, pipes, (memory,), 60.0
    stage = kernels.call_stage(processes, SEEDS, '"image"', (3, 1, 0, 0))
    os.close(write)
    assert kernels.run_stage(stage, 0, draw(3, "uint8")) is None
    os.close(read)
    assert kernels.run_stage(stage, 0, draw(3, "uint8")) is None


def test_seeds_pass_through_two_numbers_of_32_bits() -> None:
    assert np.array_equal(join_seeds(split_seeds(SEEDS)), SEEDS)


STEP = {"python": {"call": "helpers.user_functions:draws_of_all", "workers": 2, "timeout": 60}}
STEPS = ["decode", STEP, {"center_crop": {"size": 40}}]


def test_a_pipeline_makes_the_same_images_with_it_as_without(faces: Path) -> None:
    """Even if its processes are killed meanwhile."""
    with load(faces, STEPS, engine="dataloader", workers=0, decoder="jpeg_window") as loader:
        expected = by_id(loader)
    with load(faces, STEPS) as loader:
        (step,) = (e.step for e in loader.config.pipeline.entries if e.name == "python")
        batches = iter(loader)
        images = by_id([next(batches)])
        pool = step._pool  # type: ignore[attr-defined]
        for process in list(pool._processes._processes.values()):
            os.kill(process.pid, signal.SIGKILL)
        images |= by_id(batches)  # type: ignore[arg-type]
    assert images.keys() == expected.keys()
    assert all(torch.equal(images[n], expected[n]) for n in images)
