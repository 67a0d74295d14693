from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import LinearTransformation as Torchvision

import gpupipe
from gpupipe import config
from gpupipe.dataset.index import build_empty
from gpupipe.dataset.spec import Spec
from gpupipe.engines.base import Job
from gpupipe.engines.dali.lowering import Lowering
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.schema.document import Document
from gpupipe.steps.linear_transformation import LinearTransformation
from helpers.arrays import ENGINES, both, numbers, saved
from helpers.pipeline_texts import build, mistakes
from helpers.reference import differences

COUNT = 8 * 8 * 3
RNG = np.random.default_rng(0)
MATRIX: NDArray[Any] = RNG.standard_normal((COUNT, COUNT)).astype(np.float32)
MEAN: NDArray[Any] = (RNG.random(COUNT) * 255).astype(np.float32)


def step_of_files(folder: Path, matrix: Any = MATRIX, mean: Any = MEAN) -> dict[str, Any]:
    np.save(folder / "matrix.npy", matrix)
    np.save(folder / "mean.npy", mean)
    files = {"transformation_matrix": "matrix.npy", "mean_vector": "mean.npy"}
    return {"linear_transformation": {key: str(folder / name) for key, name in files.items()}}


def step_of_lists() -> dict[str, Any]:
    lists = {"transformation_matrix": MATRIX.tolist(), "mean_vector": MEAN.tolist()}
    return {"linear_transformation": lists}


def pipeline_of(step: dict[str, Any], dtype: str = "uint8") -> Pipeline:
    image = Spec.of_image(3, 8, 8, dtype=dtype)
    return build_pipeline("p", Document("p", [step]), fields={"image": image})


def test_engines_agree_on_photographs(small_gallery: Path, tmp_path: Path) -> None:
    """Up to the order in which a processor sums: numbers are about 2,000."""
    steps = [{"random_crop": {"size": [8, 8]}}, "random_horizontal_flip", step_of_files(tmp_path)]
    found = differences(small_gallery, *steps, device="cpu")
    assert min(float(d.expected.abs().mean()) for d in found) > 100
    assert max(d.most for d in found) < 0.1


@pytest.mark.parametrize("wide", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("layout", ["CHW", "HWC", "HW"])
def test_each_engine_makes_what_torchvisions_class_makes(
    tmp_path: Path, layout: str, dtype: str, wide: str
) -> None:
    shape = {"CHW": (3, 8, 8), "HWC": (8, 8, 3), "HW": (12, 16)}[layout]
    array = numbers(dtype, (5, *shape))
    step = step_of_files(tmp_path, MATRIX.astype(wide), MEAN.astype(wide))
    theirs = Torchvision(*(torch.from_numpy(a.astype(wide)) for a in (MATRIX, MEAN)))
    pairs = both(saved(tmp_path, array, layout=layout), [step])
    for image, pair in zip(array, pairs, strict=True):
        planes = torch.from_numpy(image.transpose(2, 0, 1) if layout == "HWC" else image)
        expected = theirs(planes.reshape(-1, *planes.shape[-2:])).reshape(planes.shape)
        expected = expected.permute(1, 2, 0) if layout == "HWC" else expected
        assert expected.dtype == getattr(torch, wide)
        for made in pair:
            torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("engine", ENGINES)
def test_zca_whitening_of_photographs_makes_their_covariance_the_identity(
    photos: Path, tmp_path: Path, engine: str
) -> None:
    data = {"source": "folder", "root": str(photos)}
    before = [
        "decode",
        {"resize": {"size": [2, 3]}},
        {"grayscale": {}},
        {"to_dtype": {"dtype": "float32", "scale": True}},
    ]
    rows = read_rows(data, before, engine).astype(np.float64)
    assert len(rows) > 5 * 6
    mean, covariance = rows.mean(0), np.cov(rows.T)
    assert np.abs(covariance - np.eye(6)).max() > 0.5
    values, vectors = np.linalg.eigh(covariance)
    zca = vectors @ np.diag(values**-0.5) @ vectors.T
    white = read_rows(data, [*before, step_of_files(tmp_path, zca, mean)], engine)
    assert white.dtype == np.float64
    np.testing.assert_allclose(np.cov(white.T), np.eye(6), atol=1e-3)
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-3)


def read_rows(data: dict[str, Any], steps: list[Any], engine: str) -> NDArray[Any]:
    """All images of an epoch as rows."""
    written = {"data": data, "pipeline": steps}
    options = {"device": "cpu", "batch_size": 1} | ENGINES[engine]
    with gpupipe.load(written, **options) as loader:
        return np.concatenate([batch["image"].numpy().reshape(1, -1) for batch in loader])


def test_other_numbers_are_another_pipeline_and_another_path_is_not(tmp_path: Path) -> None:
    first = pipeline_of(step_of_files(tmp_path)).fingerprint
    (tmp_path / "b").mkdir()
    assert pipeline_of(step_of_files(tmp_path / "b")).fingerprint == first
    assert pipeline_of(step_of_lists()).fingerprint == first
    changed = MATRIX.copy()
    changed[-1, -1] += 1e-3
    assert pipeline_of(step_of_files(tmp_path, changed)).fingerprint != first
    assert pipeline_of(step_of_files(tmp_path, MATRIX, MEAN + 1)).fingerprint != first
    wide = step_of_files(tmp_path, MATRIX.astype(np.float64), MEAN.astype(np.float64))
    assert pipeline_of(wide).fingerprint != first


def test_a_nested_step_counts_for_the_fingerprint_too(tmp_path: Path) -> None:
    def fingerprint(mean: Any) -> str:
        step = step_of_files(tmp_path, mean=mean)
        return pipeline_of({"random_apply": {"transforms": [step]}}, "float32").fingerprint

    assert fingerprint(MEAN) != fingerprint(MEAN + 1)


def test_a_client_knows_the_pipeline_without_the_file(tmp_path: Path) -> None:
    served = pipeline_of(step_of_files(tmp_path))
    described = served.entries[0].step.model_dump(mode="json")
    for file in tmp_path.iterdir():
        file.unlink()
    known = pipeline_of({"linear_transformation": described})
    assert known.fingerprint == served.fingerprint
    assert known.output_spec == served.output_spec
    assert not LinearTransformation.can_run_on_batches


def test_a_relative_path_begins_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_of_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    files = {key: Path(path).name for key, path in step["linear_transformation"].items()}
    relative = pipeline_of({"linear_transformation": files})
    assert relative.fingerprint == pipeline_of(step).fingerprint


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_any_order_in_the_file_is_the_same_matrix(
    tmp_path: Path, order: Any, byte_order: Any
) -> None:
    stored = np.asarray(MATRIX, np.dtype("f4").newbyteorder(byte_order), order=order)
    (entry,) = pipeline_of(step_of_files(tmp_path, stored)).entries
    made = entry.step.torch(torch.ones(3, 8, 8), {}).ravel()
    np.testing.assert_allclose(made, (1 - MEAN) @ MATRIX, rtol=1e-4, atol=1e-2)


def test_a_mask_is_left_alone() -> None:
    step = LinearTransformation.model_validate(step_of_lists()["linear_transformation"])
    mask = replace(Spec.of_image(1, 5, 6), kind="mask")
    adapted = step.adapt_to_mask().resolve(mask)
    assert adapted.infer_spec(mask) == mask
    image = torch.ones(1, 5, 6, dtype=torch.uint8)
    assert adapted.torch(image, {}) is image


def test_on_a_gpu_it_is_refused() -> None:
    step = {"transformation_matrix": np.eye(3).tolist(), "mean_vector": [0, 0, 0]}
    written = {
        "data": {"source": "folder", "root": "/nowhere"},
        "pipeline": ["decode", {"resize": {"size": [1, 1]}}, {"linear_transformation": step}],
    }
    checked = config.read(written)
    job = Job(build_empty(), checked.pipeline, checked.loader, 1)
    with pytest.raises(gpupipe.EngineError, match="set 'device: cpu', or leave the step out"):
        Lowering(job, "gpu", False).operators()


def test_torchvisions_class_in_float64_is_refused_with_what_to_write() -> None:
    wide = Torchvision(torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
    with pytest.raises(gpupipe.ConfigError, match="make it float32, or save it with"):
        gpupipe.from_torchvision(wide)


EYE = "[[1, 0, 0], [0, 1, 0], [0, 0, 1]]"
GOOD = f"transformation_matrix: {EYE}, mean_vector: [0, 0, 0]"


def test_it_takes_images_of_its_size() -> None:
    build("decode", "resize: {size: [1, 1]}", f"linear_transformation: {{{GOOD}}}")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("transformation_matrix: [[1, 0]], mean_vector: [0]", "is 1x2, but should be square"),
        (f"transformation_matrix: {EYE}, mean_vector: [0, 0]", "is 3x3, but mean_vector has 2"),
        (f"transformation_matrix: {EYE}, mean_vector: [0, .nan, 0]", "[1] is not finite"),
        (f"transformation_matrix: {EYE}, mean_vector: [0, 1e300, 0]", "[1] is not finite"),
        ("transformation_matrix: [[1, 2], [1]], mean_vector: [0]", "rows have different lengths"),
        ("transformation_matrix: [1, 2], mean_vector: [0]", "should be a list of rows"),
        (f"transformation_matrix: {EYE}, mean_vector: [a, b, c]", "should be a list of numbers"),
        (f"transformation_matrix: {EYE}, mean_vector: mean.txt", "or the path of an .npy file"),
        (f"transformation_matrix: {EYE}, mean_vector: no.npy", "no.npy cannot be read: No such"),
    ],
)
def test_mistakes(parameters: str, message: str) -> None:
    (mistake,) = mistakes(
        "decode", "resize: {size: [1, 1]}", f"linear_transformation: {{{parameters}}}"
    )
    assert mistake.startswith("3:")
    assert message in mistake


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("random_horizontal_flip", "sizes differ here: put it after a crop or resize to a fixed"),
        ("resize: {size: [8, 8]}", "of 3 numbers, but the image has 3 x 8 x 8 = 192"),
        ("to_dtype: {dtype: int16}", "write 'to_dtype: {dtype: float32}' before it"),
    ],
)
def test_inputs_that_are_refused(before: str, message: str) -> None:
    (mistake,) = mistakes("decode", before, f"linear_transformation: {{{GOOD}}}")
    assert mistake.startswith("3:3: linear_transformation cannot stand here: ")
    assert message in mistake


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (np.zeros(3, np.int64), "the numbers are int64, but should be float32 or float64"),
        (np.zeros((3, 1), np.float32), r"has the shape \[3, 1\], but needs 1 axes"),
        (np.array([0, 1, np.inf], np.float32), r"\[2\] is not finite"),
        (np.zeros(3, np.float64), "is float32, but mean_vector is float64"),
        (np.array([{}]), "is no .npy file of numbers: Object arrays cannot"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, stored: Any, message: str) -> None:
    step = step_of_files(tmp_path, np.eye(3, dtype=np.float32), stored)
    with pytest.raises(gpupipe.ConfigError, match=message):
        pipeline_of(step)
