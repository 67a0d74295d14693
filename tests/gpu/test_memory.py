"""What a loader takes of a GPU's memory, and that it gives it back."""

from pathlib import Path

import pytest
import torch

import gpupipe
from gpupipe.engines.dali.memory import BLOCK, estimate_need
from helpers.loaders import loading

MIB = 2**20


load = loading("affine", device="gpu", ids=False, batch_size=60, threads=2)


def used() -> int:
    """Bytes of the GPU that are in use, by all."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def epochs(loader: gpupipe.Loader, count: int = 3) -> None:
    for _ in range(count):
        for batch in loader:
            assert batch["image"].is_cuda


def test_close_gives_the_pool_back(faces: Path) -> None:
    with load(faces) as loader:
        epochs(loader, 1)  # what CUDA, nvJPEG and DALI keep from their first use on
    before = used()
    with load(faces, prefetch=8) as loader:
        epochs(loader)
        during = used()
    after = used()
    print(f"before {before / MIB:.0f} MiB, during {during / MIB:.0f}, after {after / MIB:.0f}")
    assert during >= before + 2 * BLOCK
    assert after <= before + BLOCK


def test_a_loader_takes_no_more_than_is_worked_out(faces: Path) -> None:
    with load(faces) as loader:
        epochs(loader, 1)
    before = used()
    with load(faces, prefetch=4) as loader:
        need = estimate_need(loader.engine._job, True)
        assert need is not None
        wanted = need.of(60, 4, 2)
        epochs(loader)
        taken = used() - before
    print(f"taken {taken / MIB:.0f} MiB, worked out {wanted / MIB:.0f}")
    assert taken <= wanted + 4 * BLOCK, "kernels and nvJPEG have scratch memory that is not counted"


def test_more_than_is_allowed_is_refused_before_anything_is_taken(faces: Path) -> None:
    with load(faces, gpu_memory="2GB") as loader:
        epochs(loader, 1)
    with pytest.raises(gpupipe.EngineError, match=r"loader\.gpu_memory=.*would fit|Not even"):
        load(faces, gpu_memory="70MiB")
