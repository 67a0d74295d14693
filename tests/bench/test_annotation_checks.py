"""`gpupipe check --annotations`: what it counts, and how it ends."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpupipe.cli.app import main
from helpers.coco_files import document, write


def check(folder: Path, **data: object) -> tuple[int, dict[str, list[str]]]:
    """The exit code, and the cells of each row of the table."""
    text = json.dumps({"data": data, "pipeline": ["decode"], "loader": {"batch_size": 2}})
    (folder / "c.json").write_text(text)
    found = CliRunner().invoke(main, ["check", str(folder / "c.json"), "--annotations"])
    lines = [line.strip().split("  ") for line in found.output.splitlines() if line.strip()]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    return found.exit_code, {row[0]: row[1:] for row in rows}


def test_faults_and_missing_files_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    content = document(12)
    file = write(tmp_path, content)
    data = {"source": "coco", "root": f"{tmp_path}/images", "annotations": str(file)}
    code, rows = check(tmp_path, **data)
    crowds = sum(a["iscrowd"] for a in content["annotations"])
    assert code == 0
    assert rows["images"] == ["12"]
    assert rows["annotations"] == [str(len(content["annotations"]))]
    assert rows["boxes that are delivered"] == [str(len(content["annotations"]) - crowds)]
    assert rows["files of images that are missing"] == ["0"]
    content["annotations"][9]["bbox"][2] = 0
    content["annotations"][7]["category_id"] = 99
    (tmp_path / "images" / "003.jpg").unlink()
    file.write_text(json.dumps(content))
    code, rows = check(tmp_path, **data)
    assert code == 1
    assert rows["a box without area"][0] == "1"
    found = CliRunner().invoke(main, ["check", str(tmp_path / "c.json"), "--annotations"])
    assert "annotations[9]" in "".join(found.output.split())  # a long cell is folded
    assert rows["unknown class"][0] == "1"
    assert rows["files of images that are missing"][0] == "1"
    assert "images/003.jpg" in "".join(found.output.split())


def test_a_source_without_annotations_is_refused(tmp_path: Path) -> None:
    write(tmp_path, document(4))
    (tmp_path / "c.json").write_text(
        json.dumps(
            {
                "data": {"source": "folder", "root": f"{tmp_path}/images", "label": None},
                "pipeline": ["decode"],
            }
        )
    )
    found = CliRunner().invoke(main, ["check", str(tmp_path / "c.json"), "--annotations"])
    assert found.exit_code == 1
    assert "reads no annotations" in found.output
