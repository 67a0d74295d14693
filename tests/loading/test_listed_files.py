"""load() and `gpupipe check` look for the files that a list names."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import gpupipe
from gpupipe.bench import plan
from gpupipe.cli.app import main
from gpupipe.config import read
from gpupipe.errors import DataError
from gpupipe.loading.assembly import resolve


def config_of(**data: Any) -> dict[str, Any]:
    loader = {"device": "cpu", "batch_size": 2}
    return {"data": data, "pipeline": ["decode"], "loader": loader}


def list_of(tmp_path: Path, files: int, rows: int, *missing: str) -> dict[str, Any]:
    """The data of a list with `rows` rows of `files` files, and of missing ones after them."""
    for n in range(files):
        (tmp_path / f"{n}.jpg").touch()
    names = [f"{n % files}.jpg" for n in range(rows)]
    (tmp_path / "l.txt").write_text("# a comment\n" + "\n".join([*names, *missing]) + "\n")
    return {"source": "file_list", "file": str(tmp_path / "l.txt")}


def facts(config: dict[str, Any], look_at_all: bool = False, **changes: Any) -> list[str]:
    lines = plan.facts(resolve(read(config, **changes)), look_at_all)
    return [line for line in lines if line.startswith("files:")]


def test_missing_files_are_named_with_list_and_line(tmp_path: Path) -> None:
    config = config_of(**list_of(tmp_path, 3, 3, "gone.jpg", *(f"{n}.png" for n in range(6))))
    with pytest.raises(DataError) as error:
        facts(config)
    assert f"{tmp_path}/l.txt:5: {tmp_path}/gone.jpg: no such file" in str(error.value)
    assert "; and 2 more; 10 of 10 rows looked at: put the files there" in str(error.value)
    (line,) = facts(config, on_error="skip")
    assert "gone.jpg" in line, "a run that leaves bad samples out can begin"


def test_a_long_list_is_sampled_unless_all_is_asked_for(tmp_path: Path) -> None:
    config = config_of(**list_of(tmp_path, 1, 20_000))
    assert facts(config) == [
        "files: 1,000 of 20,000 rows looked at, and all are there; "
        "'gpupipe check --files' looks for all"
    ]
    assert facts(config, True) == ["files: 20,000 of 20,000 rows looked at, and all are there"]
    one = config_of(**list_of(tmp_path, 1, 20_000, "gone.jpg"))
    with pytest.raises(DataError, match=r"l\.txt:20002: .*gone\.jpg"):
        facts(one, True)
    many = config_of(**list_of(tmp_path, 1, 9_900, *(f"no{n}.jpg" for n in range(100))))
    with pytest.raises(DataError, match="; 1,000 of 10,000 rows looked at"):
        facts(many)


def test_further_fields_and_the_lists_of_a_mix_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    (tmp_path / "l.csv").write_text("path,mask\na.jpg,gone.png\n")
    data = {"source": "file_list", "file": str(tmp_path / "l.csv"), "label": None}
    both = [{"decode": {"on": ["image", "mask"]}}]
    message = rf"l\.csv:2: {tmp_path}/gone\.png"
    with pytest.raises(DataError, match=message):
        facts(config_of(**data, fields={"mask": "mask"}), pipeline=both)
    (tmp_path / "l.txt").write_text("a.jpg\ngone.png\n")
    parts = {"one": {"source": "file_list", "file": str(tmp_path / "l.txt")}}
    with pytest.raises(DataError, match=r"l\.txt:2: "):
        facts(config_of(source="mix", parts=parts))


def test_load_looks_for_files_as_check_does(tmp_path: Path) -> None:
    config = config_of(**list_of(tmp_path, 3, 3, "gone.jpg"))
    with pytest.raises(DataError, match=rf"l\.txt:5: {tmp_path}/gone\.jpg: no such file"):
        gpupipe.load(config)
    gpupipe.load(config, on_error="skip").close()
    with pytest.raises(DataError, match=r"l\.txt:5: .*gone\.jpg"):
        gpupipe.load(config_of(source="mix", parts={"one": config["data"]}))


def test_load_looks_only_for_files_that_it_may_draw(tmp_path: Path, faces: Path) -> None:
    there = next(faces.glob("*/*.jpg")).relative_to(faces)
    (tmp_path / "l.csv").write_text(f"path,label,w\n{there},0,1\ngone.jpg,1,0\n{there},1,2\n")
    (tmp_path / "ids.txt").write_text("0\n2\n")
    data = {"source": "file_list", "root": faces, "file": tmp_path / "l.csv", "values": ["w"]}
    gpupipe.load(config_of(**data), subset=tmp_path / "ids.txt").close()
    gpupipe.load(config_of(**data), weights="w").close()
    (tmp_path / "ids.txt").write_text("1\n2\n")
    with pytest.raises(DataError, match=r"l\.csv:3: .*gone\.jpg: no such file; 2 of 2 rows"):
        gpupipe.load(config_of(**data), subset=tmp_path / "ids.txt")


def test_a_folder_has_no_list(faces: Path) -> None:
    assert facts(config_of(source="folder", root=str(faces)), True) == []


def test_the_command(tmp_path: Path) -> None:
    list_of(tmp_path, 1, 3_000)
    config = tmp_path / "c.yaml"
    config.write_text(
        f"data: {{source: file_list, file: {tmp_path}/l.txt}}\npipeline: [decode]\n"
        "loader: {device: cpu}\n"
    )
    result = CliRunner().invoke(main, ["check", str(config), "--files"])
    assert result.exit_code == 0, result.output
    assert "files: 3,000 of 3,000 rows looked at, and all are there" in result.output
