"""loader.gpu_memory: what a job needs on a GPU follows from the sizes of its images, so it is found
without one.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe import config as configs
from gpupipe.engines.base import Job
from gpupipe.engines.dali.memory import BLOCK, PADDING, Need, check_memory, estimate_need
from helpers.fake_cuda import FakeCuda

MIB = 2**20
HIGH, WIDE = 300, 400
DECODED = HIGH * WIDE * 3
SHARP = {"random_resized_crop": {"size": 224}}
FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}
NORMAL = {"normalize": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten images of 300x400."""
    root = tmp_path_factory.mktemp("images")
    (root / "one").mkdir()
    for n in range(10):
        Image.fromarray(np.full((HIGH, WIDE, 3), n, np.uint8)).save(root / "one" / f"{n}.jpg")
    return root


def job(root: Path, pipeline: Any, threads: int = 2, **loader: Any) -> Job:
    checked = configs.read(
        {"data": {"source": "folder", "root": root}, "pipeline": pipeline, "loader": loader}
    )
    return Job(checked.source.index(), checked.pipeline, checked.loader, threads)


def bytes_of(
    root: Path, pipeline: Any, may_cut: bool = False, **loader: Any
) -> tuple[float, float]:
    """Of a sample: what all operators make, and what is delivered."""
    need = estimate_need(job(root, pipeline, **loader), may_cut)
    assert need is not None
    assert len(need.outputs) == len(need.delivered) == 10
    return float(need.outputs.max()), float(need.delivered.max())


def test_an_image_that_is_only_decoded(images: Path) -> None:
    """Decoded to HWC, and transposed."""
    assert bytes_of(images, ["decode"]) == (2 * DECODED, DECODED)
    assert bytes_of(images, ["decode"], memory_format="channels_last") == (DECODED, DECODED)
    assert bytes_of(images, [{"decode": {"mode": "gray"}}])[1] == DECODED / 3


def test_whole_images_through_the_operators_of_affine(images: Path) -> None:
    """decoders.image, warp_affine, crop_mirror_normalize."""
    assert bytes_of(images, "affine") == (DECODED + DECODED + 4 * DECODED, 4 * DECODED)


def test_a_resize_and_a_crop_are_one_operator(images: Path) -> None:
    steps = ["decode", {"resize": {"size": 256}}, {"center_crop": {"size": 224}}, FLOATS, NORMAL]
    small = 224 * 224 * 3
    assert bytes_of(images, steps) == (DECODED + small + 4 * small, 4 * small)


def test_a_window_is_no_larger_than_its_image(images: Path) -> None:
    """decoders.image, slice, resize, crop_mirror_normalize: the window is drawn, and counted as the
    whole image.
    """
    small = 224 * 224 * 3
    assert bytes_of(images, ["decode", SHARP, FLOATS]) == (
        2 * DECODED + small + 4 * small,
        4 * small,
    )
    assert bytes_of(images, ["decode", SHARP, FLOATS], may_cut=True) == (
        DECODED + small + 4 * small,
        4 * small,
    )


def test_arrays_are_copied_to_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for n in range(10):
        np.save(tmp_path / "one" / f"{n}.npy", np.zeros((5, 7, 9), np.float32))
    checked = configs.read(
        {
            "data": {"source": "numpy", "root": tmp_path, "layout": "CHW"},
            "pipeline": [{"random_horizontal_flip": {"p": 0.5}}],
        }
    )
    need = estimate_need(Job(checked.source.index(), checked.pipeline, checked.loader, 1), False)
    assert need is not None
    size = 5 * 7 * 9 * 4
    assert (need.outputs.max(), need.delivered.max()) == (2 * size, size)


def test_batches_threads_and_whole_blocks() -> None:
    need = Need(np.full(10, 2.0 * MIB), np.full(10, 1.0 * MIB))
    assert need.of(100, 2, 4) == 576 * MIB  # 2 x 200 + 100 + 4 x 16 is 564
    assert need.of(1, 1, 1) == BLOCK
    assert need.of(100, 1, 4) < need.of(100, 2, 4)


def test_a_batch_of_unequal_images_is_more_than_the_mean_and_no_more_than_the_largest() -> None:
    sizes = np.array([1.0] * 9 + [11.0]) * MIB
    need = Need(sizes, np.zeros(10))
    assert 2 * 100 * MIB < need.of(100, 1, 0) < 11 * 100 * MIB
    assert need.of(1, 1, 0) == BLOCK


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_what_is_advised_fits_and_one_more_does_not(images: Path, prefetch: int) -> None:
    wanted = job(images, "affine", batch_size=256, prefetch=prefetch)
    need = estimate_need(wanted, False)
    assert need is not None
    check_memory(wanted, need.of(256, prefetch, 2), False)
    allowed = need.of(256, prefetch, 2) // 2
    with pytest.raises(
        gpupipe.EngineError,
        match=r"loader\.gpu_memory=.* but DALI needs about .*loader\.batch_size=\d+ would fit",
    ) as raised:
        check_memory(wanted, allowed, False)
    advised = int(str(raised.value).partition("batch_size=")[2].split()[0])
    assert need.of(advised, prefetch, 2) <= allowed < need.of(advised + 1, prefetch, 2)


def test_fewer_batches_ahead_are_advised_where_a_smaller_batch_does_not_do(images: Path) -> None:
    large = Need(np.full(3, 100.0 * MIB), np.full(3, 10.0 * MIB))
    wanted = job(images, "affine", batch_size=1, prefetch=4)
    from gpupipe.engines.dali import memory

    assert (
        memory._advice(large, wanted, 192 * MIB)
        == "loader.batch_size=1 would fit with loader.prefetch=1"
    )
    assert memory._advice(large, wanted, 64 * MIB).startswith("Not even a batch of one fits")


def test_the_message_says_what_takes_how_much(images: Path) -> None:
    with pytest.raises(gpupipe.EngineError) as raised:
        check_memory(job(images, "affine", threads=8, batch_size=256), 100 * MIB, False)
    said = str(raised.value)
    batch = 256 * 6 * DECODED / MIB
    assert (
        "gpu_memory=100.0MiB, but DALI needs about "
        f"{(2 * batch + 256 * 4 * DECODED / MIB + 128) / 1024:.1f}GiB" in said
    )
    assert "2 x 527.3MiB" in said
    assert "16.0MiB for each of 8 threads" in said
    assert PADDING == 16 * MIB


def test_the_padding_is_dalis_own() -> None:
    from nvidia.dali import backend

    schema = backend.GetSchema("decoders__Image")
    assert schema.GetArgumentDefaultValueString("device_memory_padding") == str(PADDING)


def test_samples_that_cannot_be_read_are_left_out(
    images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "broken.jpg").write_bytes(b"no image")
    broken = job(tmp_path, "affine")
    assert estimate_need(broken, False) is None
    check_memory(broken, 1, False)
    assert "loader.gpu_memory is not checked" in caplog.text
    (tmp_path / "one" / "whole.jpg").write_bytes((images / "one" / "0.jpg").read_bytes())
    need = estimate_need(job(tmp_path, "affine"), False)
    assert need is not None
    assert len(need.outputs) == 1


@pytest.mark.parametrize("value", ["much", "-1GB", 0, True])
def test_no_number_of_bytes_is_refused(images: Path, value: Any) -> None:
    with pytest.raises(gpupipe.ConfigError, match=r"loader\.gpu_memory"):
        job(images, "affine", gpu_memory=value)


def test_on_a_cpu_it_changes_nothing_and_it_is_told(
    images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"data": {"source": "folder", "root": images}, "pipeline": "affine"}
    with gpupipe.load(
        config, engine="dali", device="cpu", gpu_memory="1MB", batch_size=4
    ) as loader:
        assert sum(len(batch["label"]) for batch in loader) == 10
    assert "loader.gpu_memory" in caplog.text
    assert "device is cpu" in caplog.text


def test_closing_twice_and_another_loader_behind_it(images: Path) -> None:
    config = {"data": {"source": "folder", "root": images}, "pipeline": "affine"}
    for _ in range(2):
        with gpupipe.load(config, engine="dali", device="cpu", batch_size=4) as loader:
            assert sum(len(batch["label"]) for batch in loader) == 10
        loader.close()


def test_memory_is_given_back_after_the_gpu_has_done_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks that queued kernels use stay in DALI's pool. DALI itself takes the call here."""
    from nvidia.dali import backend

    from gpupipe.runtime.memory import release_unused_memory

    cuda, release = FakeCuda(monkeypatch), backend.ReleaseUnusedMemory
    waits: list[list[int]] = []
    monkeypatch.setattr(
        backend, "ReleaseUnusedMemory", lambda: (waits.append([*cuda.waits]), release())
    )
    release_unused_memory(torch.device("cuda", 1))
    assert waits == [[1]]
    cuda.error = RuntimeError("CUDA error: an illegal memory access was encountered")
    release_unused_memory(torch.device("cuda", 1))
