"""The decoded cache under the CPU engine: what is kept, for how long, and what is refused."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from gpupipe.decoded_cache.location import cache_folder, list_files
from gpupipe.errors import DataError, SampleError
from helpers.decoded_caches import DISK, MEMORY, are_equal, counters, epochs_of, the_file
from helpers.loaders import load

PIPELINE: list[Any] = [
    "decode",
    {"resize": {"size": 80}},
    {"random_resized_crop": {"size": 64}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
]


def open_loader(root: Path, cache: Any = None, pipeline: Any = PIPELINE, **options: Any) -> Any:
    data = {} if cache is None else {"cache_decoded": cache}
    settings = {"engine": "cpu", "threads": 2, "batch_size": 16} | options
    return load(root, pipeline, data=data, **settings)


@pytest.fixture
def some_faces(faces: Path, tmp_path: Path) -> Path:
    """Files that a test may change."""
    return Path(shutil.copytree(faces, tmp_path / "faces"))


@pytest.mark.parametrize("cache", [MEMORY, DISK], ids=str)
def test_the_first_epoch_fills_it_and_later_ones_use_it(faces: Path, cache: Any) -> None:
    plain = epochs_of(open_loader(faces), 2)
    assert are_equal(epochs_of(open_loader(faces, cache), 2), plain)
    assert counters(cache["where"]).records == 60


def test_files_are_not_read_again(some_faces: Path) -> None:
    """Empty files of the same size and time are as good as the real ones."""
    plain = epochs_of(open_loader(some_faces), 2)
    epochs_of(open_loader(some_faces, MEMORY), 1)
    for path in some_faces.glob("*/*"):
        state = path.stat()
        path.write_bytes(bytes(state.st_size))
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert are_equal(epochs_of(open_loader(some_faces, MEMORY), 2), plain)


@pytest.mark.parametrize("change", ["time", "size"])
def test_a_changed_file_is_decoded_again(some_faces: Path, change: str) -> None:
    epochs_of(open_loader(some_faces, MEMORY), 1)
    *_, second, first = sorted(some_faces.glob("*/*"), key=lambda path: path.stat().st_size)
    state = first.stat()
    content = second.read_bytes()
    if change == "time":
        first.write_bytes(content.ljust(state.st_size, b"\0"))
    else:
        first.write_bytes(content + bytes(state.st_size))
        os.utime(first, ns=(state.st_atime_ns, state.st_mtime_ns))
    plain = epochs_of(open_loader(some_faces), 1)
    assert are_equal(epochs_of(open_loader(some_faces, MEMORY), 1), plain)
    assert counters().records == 61


def test_a_file_that_breaks_is_a_broken_sample_again(some_faces: Path) -> None:
    epochs_of(open_loader(some_faces, MEMORY), 1)
    broken = sorted(some_faces.glob("*/*"))[3]
    broken.write_bytes(b"no image")
    with pytest.raises(SampleError, match=broken.name):
        epochs_of(open_loader(some_faces, MEMORY), 1)
    loader = open_loader(some_faces, MEMORY, on_error="skip", max_bad=0.5)
    epochs = epochs_of(loader, 2)
    assert [sum(len(batch["id"]) for batch in epoch) for epoch in epochs] == [59, 59]
    assert len(loader.engine.quarantine) == 1


def test_a_file_that_is_gone_is_a_broken_sample(some_faces: Path) -> None:
    epochs_of(open_loader(some_faces, MEMORY), 1)
    gone = sorted(some_faces.glob("*/*"))[3]
    loader = open_loader(some_faces, MEMORY)
    gone.unlink()
    with pytest.raises(SampleError, match=gone.name):
        epochs_of(loader, 1)


def test_damaged_pixels_are_decoded_again(faces: Path) -> None:
    plain = epochs_of(open_loader(faces), 1)
    epochs_of(open_loader(faces, DISK), 1)
    path = the_file("disk")
    content = bytearray(path.read_bytes())
    end = counters("disk").end
    content[end // 2 : end // 2 + 5000] = bytes(5000)
    path.write_bytes(content)
    assert are_equal(epochs_of(open_loader(faces, DISK), 1), plain)
    assert counters("disk").end > end


@pytest.mark.parametrize("size", [0, 100, 100_000])
def test_a_broken_file_is_replaced(faces: Path, size: int) -> None:
    plain = epochs_of(open_loader(faces), 1)
    epochs_of(open_loader(faces, DISK), 1)
    os.truncate(the_file("disk"), size)
    assert are_equal(epochs_of(open_loader(faces, DISK), 1), plain)
    assert counters("disk").records == 60


def test_a_full_cache_keeps_a_share_and_the_rest_is_decoded(photos: Path) -> None:
    pipeline = ["decode", {"resize": {"size": [200, 200]}}]
    cache = {"where": "memory", "max_bytes": "2MB"}
    plain = epochs_of(open_loader(photos, None, pipeline), 3)
    assert are_equal(epochs_of(open_loader(photos, cache, pipeline), 3), plain)
    assert 0 < counters().records < 47
    assert the_file().stat().st_size == 2_000_000
    assert the_file().stat().st_blocks * 512 <= 2_000_000 + 4096


@pytest.mark.parametrize(
    "change",
    [
        {"pipeline": ["decode", {"resize": {"size": 81}}]},
        {"pipeline": [{"decode": {"apply_exif_orientation": True}}, *PIPELINE[1:]]},
        {"data": {"max_pixels": 999_999}},
    ],
    ids=str,
)
def test_other_steps_have_another_file(faces: Path, change: Any) -> None:
    epochs_of(open_loader(faces, MEMORY), 1)
    data = {"cache_decoded": MEMORY} | change.get("data", {})
    settings = {"engine": "cpu", "threads": 2, "batch_size": 16}
    epochs_of(load(faces, change.get("pipeline", PIPELINE), data=data, **settings), 1)
    assert len(list_files("memory")) == 2


def test_steps_after_the_prefix_share_a_file(faces: Path) -> None:
    epochs_of(open_loader(faces, MEMORY), 1)
    epochs_of(open_loader(faces, MEMORY, [*PIPELINE[:2], {"random_crop": {"size": 40}}]), 1)
    assert counters().records == 60


def test_orientation_and_gray(orientation_photos: Path) -> None:
    root = orientation_photos.parent
    pipeline = [{"decode": {"mode": "gray", "apply_exif_orientation": True}}, *PIPELINE[1:]]
    options = {"batch_size": 1, "shuffle": False}
    plain = epochs_of(open_loader(root, None, pipeline, **options), 2)
    assert are_equal(epochs_of(open_loader(root, MEMORY, pipeline, **options), 2), plain)


def test_views_share_the_common_prefix(photos: Path) -> None:
    pipeline = {
        "steps": ["decode", {"resize": {"size": 100}}],
        "views": {
            "big": {"count": 2, "steps": [{"random_resized_crop": {"size": 64}}]},
            "small": {"steps": [{"random_crop": {"size": 32}}, "random_horizontal_flip"]},
        },
    }
    from gpupipe import load as load_config

    def opened(cache: Any) -> Any:
        data = {"source": "folder", "root": photos, "cache_decoded": cache}
        config = {"data": data, "pipeline": pipeline}
        return load_config(config, engine="cpu", device="cpu", threads=2, batch_size=8, ids=True)

    assert are_equal(epochs_of(opened(MEMORY), 2), epochs_of(opened(None), 2))
    assert counters().records == 47


def test_a_schedule_after_the_prefix(faces: Path) -> None:
    size = {"value": 40, "until": 1, "then": 60}
    pipeline = ["decode", {"resize": {"size": 80}}, {"random_resized_crop": {"size": size}}]
    plain = epochs_of(open_loader(faces, None, pipeline), 3)
    assert are_equal(epochs_of(open_loader(faces, MEMORY, pipeline), 3), plain)


def test_a_resume_delivers_the_rest_of_the_epoch(faces: Path) -> None:
    plain = epochs_of(open_loader(faces), 1)
    with open_loader(faces, MEMORY) as loader:
        next(iter(loader))
        state = loader.state_dict()
    resumed = open_loader(faces, MEMORY)
    resumed.load_state_dict(state)
    assert are_equal(epochs_of(resumed, 1), [plain[0][1:]])


def test_batches_that_are_changed_leave_the_cache_as_it_is(faces: Path) -> None:
    pipeline = ["decode", {"resize": {"size": [80, 80]}}]
    options = {"shuffle": False, "memory_format": "channels_last"}
    plain = epochs_of(open_loader(faces, None, pipeline, **options), 1)
    with open_loader(faces, MEMORY, pipeline, **options) as loader:
        for _ in range(3):
            for batch in loader:
                batch["image"].zero_()
        images = [batch["image"].clone() for batch in loader]
    assert all(torch.equal(a, b["image"]) for a, b in zip(images, plain[0], strict=True))


def test_what_does_not_fit_is_refused_with_the_numbers(faces: Path) -> None:
    cache = {"where": "memory", "max_bytes": "800TB"}
    with pytest.raises(DataError, match=r"max_bytes is 800\.0TB, but .* has .* free: .*smaller"):
        open_loader(faces, cache)
    assert not list_files("memory")


def test_what_other_caches_may_still_fill_is_not_free(
    faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On /dev/shm, since its free space is no concern of other processes' files."""
    folder = os.environ["GPUPIPE_SHM"]
    monkeypatch.setenv("GPUPIPE_CACHE", folder)
    state = os.statvfs(folder)
    cache = {"where": "disk", "max_bytes": int(0.6 * state.f_bavail * state.f_frsize)}
    open_loader(faces, cache).close()
    with pytest.raises(DataError, match="other decoded caches may still fill"):
        open_loader(faces, cache, ["decode"])


def test_another_size_is_refused_while_a_process_uses_it(faces: Path) -> None:
    with open_loader(faces, MEMORY) as loader:
        next(iter(loader))
        with pytest.raises(DataError, match=r"max_bytes is 30\.0MB.*uses this cache with 200\.0MB"):
            open_loader(faces, {"where": "memory", "max_bytes": "30MB"})
    open_loader(faces, {"where": "memory", "max_bytes": "30MB"}).close()
    assert the_file().stat().st_size == 30_000_000


def test_no_shared_memory_is_refused(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPIPE_SHM", str(tmp_path / "nothing"))
    with pytest.raises(DataError, match="where: disk"):
        open_loader(faces, MEMORY)


def test_the_folder_is_the_users_alone(faces: Path) -> None:
    open_loader(faces, MEMORY).close()
    assert cache_folder("memory").stat().st_mode & 0o777 == 0o700
