"""What `gpupipe check` says without running a pipeline, against what `gpupipe run` runs."""

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.batch_stage.stage import find_shift
from gpupipe.bench import plan
from gpupipe.loading.assembly import resolve
from helpers import coco_files
from helpers.reference import operators

RECORDS = Path(__file__).parents[1] / "data" / "records"


def data_in(kind: str, faces: Path, folder: Path) -> dict[str, Any]:
    if kind == "folder":
        return {"source": "folder", "root": str(faces)}
    if kind == "tfrecord":
        return {"source": "tfrecord", "shards": str(RECORDS / "tensorflow.tfrecord")}
    if kind == "numpy":
        (folder / "a").mkdir()
        np.save(folder / "a" / "0.npy", np.zeros((4, 4, 3), np.uint8))
        return {"source": "numpy", "root": str(folder)}
    with tarfile.open(folder / "a.tar", "w") as tar:
        tar.add(next(faces.glob("*/*.jpg")), "a.jpg")
        (folder / "cls").write_text("0")
        tar.add(folder / "cls", "a.cls")
    return {"source": "webdataset", "shards": str(folder / "a.tar")}


@pytest.mark.parametrize("engine", ["dali", "auto"])
@pytest.mark.parametrize("kind", ["folder", "webdataset", "tfrecord", "numpy"])
def test_check_names_the_operators_that_run_uses(
    kind: str, engine: str, faces: Path, tmp_path: Path
) -> None:
    steps = [] if kind == "numpy" else ["decode"]
    steps.append({"to_dtype": {"dtype": "float32", "scale": True}})
    config = {"data": data_in(kind, faces, tmp_path), "pipeline": steps}
    planned = plan.operators(resolve(configs.read(config, engine=engine, device="cpu")))["cpu"]
    with gpupipe.load(config, engine=engine, device="cpu", batch_size=1) as loader:
        reads = {"dali": "external_source", "auto": "dataset.columns.read"}[engine]
        reads = "io.file.read" if (engine, kind) == ("dali", "folder") else reads
        assert planned == [(reads, "cpu", ()), *operators(loader)]


def test_check_says_what_an_epoch_is_unless_it_is_every_sample_once(faces: Path) -> None:
    config = {"data": {"source": "folder", "root": str(faces)}, "pipeline": ["decode"]}
    assert not any(line.startswith("epoch:") for line in plan.facts(resolve(configs.read(config))))
    changes = {"repeats": 2, "epoch_size": 90, "batch_size": 8, "subset": 0.5}
    with gpupipe.load(config, **changes) as loader:
        count, steps = loader.sampler.count, len(loader)
    lines = list(plan.facts(resolve(configs.read(config, **changes))))
    assert f"{steps} batches of up to 8 an epoch" in lines[0]
    assert lines[1] == (
        f"epoch: 90 samples over all ranks, chosen from {count} "
        "(repeats: 2, epoch_size: 90, subset: 0.5)"
    )


def test_a_single_batch_and_class_are_singular(faces: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "0.jpg").write_bytes(next(faces.glob("*/*.jpg")).read_bytes())
    config = {"data": {"source": "folder", "root": str(tmp_path)}, "pipeline": ["decode"]}
    lines = list(plan.facts(resolve(configs.read(config, threads=1, prefetch=1, device="cpu"))))
    assert lines[0] == "data: 1 sample in 1 class, 1 batch of up to 256 an epoch"
    assert "1 thread, 1 batch ahead" in lines[1]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"repeats": 4}, "0 % of the samples of the first 8 batches are mixed with themselves"),
        ({"repeats": 8}, "the first 8 batches are mixed with themselves; 8 of them are too small"),
        ({"batch_size": 64}, "0 % of the samples of the first batch are mixed with themselves"),
        ({"batch_size": 64, "repeats": 64}, "first batch are mixed with themselves; it is too"),
        ({"batch_size": 59}, "the first 2 batches are mixed with themselves; 1 of them is too"),
        (
            {"batch": [{"random_choice": {"transforms": ["one_hot", "cutmix"]}}], "repeats": 4},
            "0 % of the samples of the first 8 batches are mixed with themselves",
        ),
        ({"batch": ["one_hot"]}, None),
    ],
)
def test_check_says_how_many_samples_are_mixed_with_themselves(
    settings: dict[str, Any], expected: str | None, faces: Path
) -> None:
    lines = list(plan.facts(resolve(configs.read(mixed_faces(faces), **settings))))
    found = [line for line in lines if line.startswith("mixing: ")]
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]


def test_check_counts_pairs_of_one_sample_under_weights(faces: Path) -> None:
    config = configs.read(
        mixed_faces(faces), weights="class_balanced", epoch_size=4000, batch_size=40
    )
    with gpupipe.load(config) as loader:
        batches = [p.ids for p in loader.sampler.begin()]
    alike = sum(int((ids == np.roll(ids, find_shift(ids))).sum()) for ids in batches)
    assert alike > 0
    line = f"mixing: {100 * alike / 4000:.3g} % of the samples of the first 100 batches are mixed"
    assert any(found.startswith(line) for found in plan.facts(resolve(config)))


def mixed_faces(faces: Path) -> dict[str, Any]:
    return {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": ["decode"],
        "batch": ["cutmix"],
        "loader": {"batch_size": 8},
    }


def test_check_warns_of_boxes_that_nothing_drops(tmp_path: Path) -> None:
    file = coco_files.write(tmp_path, coco_files.document())
    data = {"source": "coco", "root": str(tmp_path / "images"), "annotations": str(file)}
    crop = {"random_apply": {"transforms": ["random_iou_crop"]}}

    def warnings(*steps: Any) -> list[str]:
        config = configs.read({"data": data, "pipeline": ["decode", *steps]})
        return [line for line in plan.facts(resolve(config)) if line.startswith("warning:")]

    assert warnings("random_iou_crop", "sanitize_bounding_boxes") == []
    for steps in ([crop], ["sanitize_bounding_boxes", "random_iou_crop"]):
        (line,) = warnings(*steps)
        assert "boxes outside of its window" in line
        assert line.endswith("write sanitize_bounding_boxes after it")
