"""Columns of lists that look like boxes: the config offers them, and the user chooses a format."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import gpupipe
from gpupipe.cli.app import main
from gpupipe.init.box_columns import find_boxes
from helpers.list_files import BOXES, WRITERS


def rows(form: str) -> list[dict[str, Any]]:
    samples = []
    for n, boxes in enumerate(BOXES):
        objects: Any = {
            "id": list(range(len(boxes))),
            "bbox": boxes,
            "category": ["a"] * len(boxes),
        }
        if form == "list of structs":
            objects = [{"bbox": box, "category": "a"} for box in boxes]
        samples.append({"path": f"{n}.png", "objects": objects})
    return samples


@pytest.mark.parametrize("form", ["struct of lists", "list of structs"])
@pytest.mark.parametrize("kind", ["jsonl", "table", "parquet", "arrow", "tar"])
def test_the_config_offers_formats_and_runs_with_each(kind: str, form: str, data: Path) -> None:
    WRITERS[kind](data, rows(form))
    said = CliRunner().invoke(main, ["init", "set"])
    assert said.exit_code == 0, said.output
    assert re.search(r"objects\.bbox' looks like boxes, and is not read", said.output)
    text = Path("train.yaml").read_text()
    assert "boxes" not in yaml.safe_load(text)["data"].get("fields", {})
    for format in ("xyxy", "xywh", "cxcywh"):
        lines = [
            re.sub("^  # ", "  ", line)
            if re.match("  # (fields|  )", line)
            and ("kind: boxes" not in line or f"format: {format}" in line)
            else line
            for line in text.splitlines()
        ]
        config = yaml.safe_load("\n".join(lines))
        fields = config["data"]["fields"]
        assert fields["boxes"]["format"] == format
        assert set(fields) - {"image"} == {"boxes", "labels"}
        config["data"] |= {"bad_boxes": "drop"}
        with gpupipe.load(config, batch_size=4, last_batch="partial", device="cpu") as loader:
            batch = next(iter(loader))
            assert {"boxes", "labels"} <= set(batch)
            assert loader.index.classes == ["a"]


def test_numbers_from_0_to_1_are_offered_as_fractions() -> None:
    found = find_boxes([{"b": []}, {"b": [[0, 0.5, 1, 0.25]]}])
    assert found is not None
    assert (found.boxes, found.are_fractions, dict(found.others)) == ("b", True, {})


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"a": 5, "b": "text", "c": None},
        {"a": [1, 2, 3, 4]},
        {"a": [[1, 2, 3]]},
        {"a": [[1, 2, 3, "4"]]},
        {"a": [[[1, 2, 3, 4]]]},
        {"a": [{"b": [1, 2, 3, 4]}, {}]},
    ],
    ids=str,
)
def test_other_lists_are_no_boxes(row: dict[str, Any]) -> None:
    assert find_boxes([row]) is None


def test_columns_of_other_lengths_do_not_go_with_boxes() -> None:
    found = find_boxes([{"box": [[0, 0, 5, 5]], "labels": [1, 2], "area": [25], "size": [5, 5]}])
    assert found is not None
    assert found.others == {"area": "area"}
