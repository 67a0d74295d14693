"""Samples that are read, several at once, and run as native programs: the same pixels, shapes and
errors as one by one.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.dataset.columns import StringArray
from gpupipe.dataset.file_columns import FileColumn
from gpupipe.engines.cpu import sample_reader, samples
from gpupipe.engines.cpu.field_samples import FieldSamples
from gpupipe.engines.cpu.program import Stage
from gpupipe.engines.cpu.samples import SampleRunner
from gpupipe.engines.cpu.stages import create_run
from gpupipe.runtime import tracing
from gpupipe.runtime.function_failures import CallFailedError
from gpupipe.runtime.user_functions import FunctionMissingError
from helpers.jpeg_kinds import encode, several_scans
from helpers.loaders import loading
from helpers.reference import by_id

jpeg = pytest.importorskip("gpupipe._jpeg", reason="the extension is not built")
kernels = pytest.importorskip("gpupipe._kernels", reason="the extension is not built")
load = loading(engine="cpu", threads=2, batch_size=8, shuffle=False)
load_six = loading(engine="cpu", threads=1, batch_size=6, shuffle=False)

NUMBERS: list[Any] = [
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}},
]
AFFINE = {"degrees": 30, "scale": [0.4, 3.0], "interpolation": "bilinear", "fill": 9}
PIPELINES: list[list[Any]] = [
    [{"random_affine": AFFINE}],
    [{"random_resized_crop": {"size": 40}}, {"random_horizontal_flip": {}}, *NUMBERS],
    [{"resize": {"size": 64}}, {"center_crop": {"size": 50}}, NUMBERS[0]],
    [{"resize": {"size": [30, 50], "interpolation": "bicubic"}}],
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each sample that was run as a native program was done by it."""
    found: list[bool] = []
    run_native = samples.run_native

    def run_and_note(run: Any, rows: range) -> list[int]:
        failed = run_native(run, rows)
        found.extend(row not in failed for row in rows)
        return failed

    monkeypatch.setattr(samples, "run_native", run_and_note)
    yield found


def has_none(groups: Any, views: Any) -> None:
    """In place of `create_native`: samples run one by one."""


@pytest.mark.parametrize("steps", PIPELINES, ids=str)
@pytest.mark.parametrize("options", [{}, {"memory_format": "channels_last"}], ids=str)
def test_the_pixels_are_those_of_single_samples(
    faces: Path,
    steps: list[Any],
    options: dict[str, Any],
    calls: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with load(faces, ["decode", *steps], **options) as loader:
        found = by_id(loader)
    assert calls.count(True) >= 60
    monkeypatch.setattr(samples, "create_native", has_none)
    calls.clear()
    with load(faces, ["decode", *steps], **options) as loader:
        expected = by_id(loader)
    assert not calls
    assert all(torch.equal(found[id], expected[id]) for id in expected)


def test_images_are_turned_as_their_exif_tags_say(
    orientation_photos: Path, tmp_path: Path, calls: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    files = sorted(orientation_photos.rglob("*.jpg"))
    for n in range(3):
        for file in files:
            shutil.copy(file, tmp_path / "one" / f"{n}-{file.name}")
    steps = [{"decode": {"apply_exif_orientation": True}}, {"resize": {"size": [30, 40]}}]
    with load(tmp_path, steps) as loader:
        found = by_id(loader)
    assert len(found) == 3 * len(files)
    monkeypatch.setattr(samples, "create_native", has_none)
    with load(tmp_path, steps) as loader:
        expected = by_id(loader)
    assert all(torch.equal(found[id], expected[id]) for id in expected)


def test_what_it_does_not_know_is_run_alone(tmp_path: Path, calls: list[bool]) -> None:
    (tmp_path / "one").mkdir()
    contents = [encode((40, 50), "420"), *(content for _, content in several_scans((40, 50)))]
    for n, content in enumerate([*contents, *contents]):
        (tmp_path / "one" / f"{n}.jpg").write_bytes(content)
    steps = ["decode", {"resize": {"size": 20}}]
    with load(tmp_path, steps, batch_size=10, threads=1) as loader:
        assert len(by_id(loader)) == 10
    assert calls[:10].count(True) == 2, "the two JPEGs of one scan"


def test_a_step_without_a_stage_makes_each_sample_run_alone(faces: Path, calls: list[bool]) -> None:
    steps = [{"resize": {"size": 64}}, NUMBERS[0], {"resize": {"size": 48}}]
    with load(faces, ["decode", *steps]) as loader:
        assert len(by_id(loader)) == 60
    assert not any(calls)


@pytest.mark.parametrize("place", [0, 3])
def test_a_file_that_is_damaged_does_not_decide_the_shape_of_the_batch(
    tmp_path: Path, place: int
) -> None:
    """Its header states another size than the other files have."""
    (tmp_path / "one").mkdir()
    for n in range(6):
        content = encode((40, 50), "420", n)
        if n == place:
            content = encode((64, 64), "420")
            content = content[: len(content) // 2]
        (tmp_path / "one" / f"{n}.jpg").write_bytes(content)
    affine = {"random_affine": AFFINE}
    with load(tmp_path, ["decode", affine], on_error="skip", max_bad=0.5, threads=1) as loader:
        (batch,) = list(loader)
        assert batch["id"].tolist() == [n for n in range(6) if n != place]
        assert batch["image"].shape == (5, 3, 40, 50)
    with (
        load(tmp_path, ["decode", affine]) as loader,
        pytest.raises(gpupipe.SampleError, match=rf"one/{place}\.jpg: a JPEG that was cut off"),
    ):
        list(loader)


@pytest.mark.parametrize("function", ["create_native", "run_native"])
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        FileNotFoundError("a file that is no longer there"),
        RuntimeError("of torch"),
        ValueError("a parameter"),
        CallFailedError("ended its process"),
        FunctionMissingError("there is no such function"),
    ],
    ids=repr,
)
def test_what_fails_for_several_samples_runs_alone(
    faces: Path, function: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a sample, a function of the user's or the machine is to blame."""
    steps = ["decode", {"random_affine": AFFINE}, *NUMBERS, {"random_erasing": {"p": 0.5}}]
    with load(faces, steps) as loader:
        expected = by_id(loader)

    def fail(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(samples, function, fail)
    with load(faces, steps) as loader:
        found = by_id(loader)
    assert len(expected) == 60
    assert all(torch.equal(found[id], expected[id]) for id in expected)


@pytest.mark.parametrize("function", ["create_native", "run_native"])
def test_a_mistake_in_the_code_fails_the_batch(
    faces: Path, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the samples ran one by one, the batch would be right, but slow, and no one would know."""
    monkeypatch.setattr(samples, function, lambda one_argument_too_few: None)
    with (
        load(faces, ["decode", {"random_affine": AFFINE}]) as loader,
        pytest.raises(gpupipe.EngineError, match=r"could not make a batch: TypeError.*samples\.py"),
    ):
        list(loader)


def test_a_run_that_is_cancelled_runs_no_further_row() -> None:
    windows = np.array([[0, 0, 2, 3]] * 4)
    run = create_run(
        Stage(kernels.crop_stage(windows)), [np.zeros((4, 5, 3), np.uint8)] * 4, None, None
    )
    assert run.run(0, 4) == []
    windows[:] = 9  # outside of the images
    assert run.run(1, 3) == [1, 2]
    run.cancel()
    assert run.run(0, 4) == []


def test_a_run_frees_the_files_of_the_rows_that_it_did(tmp_path: Path) -> None:
    for name in ("0", "2"):
        (tmp_path / name).write_bytes(encode((4, 5), "420"))
    (tmp_path / "1").write_bytes(b"no image")
    paths = StringArray.from_strings(["0", "1", "2"])
    files, sizes = FileColumn(str(tmp_path), paths).open_files(np.arange(3)), np.zeros((3, 2))
    assert files is not None
    assert files.read(0, 3, sizes, -1, 1) == 1
    stage = Stage(jpeg.decode_stage(np.array([[4, 5]] * 3), None, 3))
    run = create_run(stage, [None] * 3, files, None)
    assert run.run(0, 2) == [1]
    assert files.take(0) is None
    assert bytes(files.take(1)) == b"no image"
    assert run.run(0, 1) == [0], "its file is gone"
    assert run.run(2, 3) == []
    assert files.read(0, 3, sizes, -1, 1) == 1
    assert bytes(files.take(2)) == (tmp_path / "2").read_bytes()
    assert run.run(0, 3) == [1, 2], "one file is read again, and the other one was taken"


def test_rows_without_content_and_wrong_counts_are_refused() -> None:
    stage = Stage(kernels.crop_stage(np.array([[0, 0, 2, 3]] * 2)))
    image, names = np.zeros((4, 5, 3), np.uint8), np.frombuffer(b"name", np.uint8)
    files = kernels.open_files(b"/", names, np.array([0, 4]), np.array([0, 0]))
    for contents, own, positions, reason in (
        ([image], None, None, "one content for each row"),
        ([image, None], None, None, "neither a content nor a file"),
        ([image, image], None, np.zeros(3, np.int64), "one position for each row"),
        ([None, None], files, np.array([0, 2]), "neither a content nor a file"),
        ([None, None], files, np.array([-1, 0]), "neither a content nor a file"),
        ([None, None], files, np.array([1, 1]), "two rows have the same file"),
    ):
        with pytest.raises(ValueError, match=reason):
            create_run(stage, contents, own, positions)
    with pytest.raises(TypeError, match="open_files"):
        kernels.create_run(stage, [image, None], image, None)
    with pytest.raises(IndexError, match="no rows 1 to 3"):
        create_run(stage, [image, image], None, None).run(1, 3)


def test_nothing_runs_after_a_cancellation() -> None:
    nothing: Any = None
    failed: list[int] = []
    for is_cancelled in (True, False):
        runner = SampleRunner(
            pipeline=nothing,
            programs={},
            samples={"image": FieldSamples.of_unread(8)},
            open=nothing,
            cache=None,
            on_error=lambda row, error: failed.append(row),
            is_skipped=lambda row, is_cancelled=is_cancelled: is_cancelled,
            key="",
        )
        runner.run(range(7, 8))
        assert failed == ([] if is_cancelled else [7])


def test_images_of_the_decoded_cache_run_in_one_call(
    faces: Path, calls: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path))
    cache = {"where": "disk", "max_bytes": "100MB"}
    steps = ["decode", {"resize": {"size": 64}}, {"center_crop": {"size": 50}}, NUMBERS[0]]
    with load(faces, steps) as loader:
        expected = by_id(loader)
    for run in range(2):
        calls.clear()
        with load(faces, steps, data={"cache_decoded": cache}) as loader:
            found = by_id(loader)
        assert all(torch.equal(found[id], expected[id]) for id in expected)
        assert calls.count(True) >= 60 * run


def test_operators_that_are_recorded_run_one_by_one(faces: Path, calls: list[bool]) -> None:
    with tracing.record() as trace, load(faces, ["decode", {"random_affine": AFFINE}]) as loader:
        list(loader)
    assert not calls
    names = {event["name"] for event in trace.events if event.get("cat") == "operator"}
    assert len(names) == 2
    assert "kernels.warp" in names


def test_a_file_that_is_missing_is_named_and_costs_no_other_sample(few: Path) -> None:
    paths = sorted(path for path in few.rglob("*") if path.is_file())
    with load_six(
        few, ["decode", {"resize": {"size": [8, 8]}}], on_error="skip", max_bad=0.5
    ) as loader:
        paths[2].rename(few / "gone")
        try:
            (batch,) = list(loader)
        finally:
            (few / "gone").rename(paths[2])
        assert batch["id"].tolist() == [0, 1, 3, 4, 5]
        (reason,) = loader.engine.quarantine.reasons.values()
        assert "no such file" in reason


def test_a_failed_read_of_several_is_a_read_of_each(
    few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    read_bytes = sample_reader.read_bytes

    def note(column: Any, row: int, data: Any = None) -> Any:
        calls.append(row)
        assert data is None
        return read_bytes(column, row, data)

    def fail(column: Any, ids: Any) -> Any:
        raise OSError

    monkeypatch.setattr(FileColumn, "open_files", lambda column, rows: None)
    monkeypatch.setattr(sample_reader, "read_rows", fail)
    monkeypatch.setattr(sample_reader, "read_bytes", note)
    with load_six(few, ["decode", {"resize": {"size": [8, 8]}}]) as loader:
        (batch,) = list(loader)
    assert calls[:6] == batch["id"].tolist() == list(range(6))
