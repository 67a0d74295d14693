"""Which steps `ship: uint8` leaves to the clients of a server, and what cannot be served so."""

from pathlib import Path
from typing import Any

import pytest

from gpupipe import config as configs
from gpupipe.config import Config, LoaderConfig
from gpupipe.engines.remote.description import describe, parse_description, split_pipeline
from gpupipe.errors import ServerError
from gpupipe.loading.assembly import create_sampler
from helpers.coco_files import document, write

SCALE: dict[str, Any] = {"to_dtype": {"dtype": "float32", "scale": True}}
NORMALIZE: dict[str, Any] = {"normalize": {"mean": [0.5], "std": [0.5]}}


def read(tmp_path: Path, pipeline: Any) -> Config:
    return configs.read(
        {
            "data": {"source": "folder", "root": str(tmp_path)},
            "pipeline": pipeline,
            "loader": {"dtype": "float16"},
        }
    )


def views_of(**views: list[Any]) -> dict[str, Any]:
    return {"steps": ["decode"], "views": {name: {"steps": s} for name, s in views.items()}}


@pytest.mark.parametrize(
    ("pipeline", "kept", "tail"),
    [
        (["decode", SCALE, NORMALIZE], ["decode"], [1, 2]),
        (
            views_of(one=[{"resize": {"size": 8}}, SCALE, NORMALIZE], two=[SCALE], three=[]),
            ["decode", "one/resize"],
            [2, 3, 4],
        ),
    ],
)
def test_the_last_steps_of_each_field_are_the_clients(
    tmp_path: Path, pipeline: Any, kept: list[str], tail: list[int]
) -> None:
    whole = read(tmp_path, pipeline)
    shorter, numbers = split_pipeline(whole)
    assert list(numbers) == tail
    assert [entry.key for entry in shorter.pipeline.entries] == kept
    assert shorter.pipeline.outputs == whole.pipeline.outputs
    assert (whole.loader.dtype, shorter.loader.dtype) == ("float16", None)


@pytest.mark.parametrize(
    ("pipeline", "spec"),
    [
        (["decode"], r"\(3, \?, \?\) uint8"),
        (views_of(one=[], two=[{"resize": {"size": [8, 8]}}]), r"\(3, \?, \?\) uint8"),
        (["decode", SCALE, {"random_erasing": {}}, NORMALIZE], r"\(3, \?, \?\) float32"),
        (
            views_of(one=[SCALE], two=[{"resize": {"size": [8, 8]}}, SCALE, "random_erasing"]),
            r"\(3, 8, 8\) float32",
        ),
    ],
)
def test_what_sends_no_uint8_is_refused(tmp_path: Path, pipeline: Any, spec: str) -> None:
    message = rf"ends in normalize and to_dtype after uint8 images; .* {spec} before them.*batch$"
    with pytest.raises(ServerError, match=message):
        split_pipeline(read(tmp_path, pipeline))


def test_a_client_knows_the_skeleton_and_the_ids_of_categories(tmp_path: Path) -> None:
    file = write(tmp_path, document(points=3))
    data = {"source": "coco", "root": str(tmp_path / "images"), "annotations": str(file)}
    config = configs.read(
        {"data": data | {"keypoints": True, "flip_pairs": [[0, 1]]}, "pipeline": ["decode"]}
    )
    index = config.source.index()
    description = describe(config, index, (), create_sampler(config, index))
    theirs = parse_description(description, config.loader, "a server").index
    assert theirs.extra["skeleton"] == [[0, 1]]
    assert theirs.extra["keypoint_names"] == ["point 0", "point 1", "point 2"]
    assert theirs.extra["category_ids"] == index.extra["category_ids"]


def test_no_folder_of_the_server_is_described(faces: Path) -> None:
    config = read(faces, ["decode"])
    index = config.source.index()
    assert "times" in index.extra
    description = describe(config, index, (), create_sampler(config, index))
    assert description["data"]["extra"] == {}


def test_a_tuple_needs_labels(faces: Path) -> None:
    data = {"source": "folder", "root": str(faces), "label": None}
    config = configs.read({"data": data, "pipeline": ["decode"]})
    index = config.source.index()
    description = describe(config, index, (), create_sampler(config, index))
    assert parse_description(description, config.loader, "a server").index.classes == []
    wanted = config.loader.model_copy(update={"format": "tuple"})
    with pytest.raises(ServerError, match=r"loader\.format: a tuple is .* no label"):
        parse_description(description, wanted, "a server")


def test_a_field_with_an_unknown_property_is_not_understood(faces: Path) -> None:
    config = read(faces, ["decode"])
    index = config.source.index()
    description = describe(config, index, (), create_sampler(config, index))
    assert parse_description(description, config.loader, "a server").count == len(index)
    description["pipeline"]["fields"]["image"]["depth"] = 3
    with pytest.raises(ServerError, match=r"(?s)a server says .* not understood.*depth"):
        parse_description(description, config.loader, "a server")


def test_a_client_that_does_not_choose_follows_how_boxes_and_images_are_delivered(
    faces: Path,
) -> None:
    loader = {"shapes": "padded", "pad_to": 32, "targets": "padded"}
    data = {"source": "folder", "root": str(faces)}
    config = configs.read({"data": data, "pipeline": ["decode"], "loader": loader})
    index = config.source.index()
    description = describe(config, index, (), create_sampler(config, index))
    silent, choosing = LoaderConfig(), LoaderConfig(targets="list")
    followed = parse_description(description, silent, "a server", follow=True).config.loader
    assert (followed.shapes, followed.pad_to, followed.targets) == ("padded", 32, "padded")
    chosen = parse_description(description, choosing, "a server", follow=True).config.loader
    assert (chosen.pad_to, chosen.targets) == (32, "list")
