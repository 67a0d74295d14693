"""The notebooks in examples/: every cell runs, and the results are those that the text promises."""

import ast
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from helpers import forked_python

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def run_cells(path: Path) -> list[Any]:
    """Run the cells in order, as Jupyter does; return the value of each cell's last expression."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    values = []
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), str(path), "exec"), names)
        expression = last and compile(ast.Expression(last.value), str(path), "eval")
        values.append(eval(expression, names) if expression else None)
    return values


@pytest.mark.filterwarnings("ignore::gpupipe.StandInWarning")
def test_lfw(
    faces: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "lfw").symlink_to(faces)
    monkeypatch.setenv("GPUPIPE_DATA", str(tmp_path))
    loader, shapes, *pictures, _, same = run_cells(EXAMPLES / "lfw.ipynb")
    assert repr(loader).startswith("<gpupipe.Loader lfw: ")
    assert shapes["image"][1] == (16, 3, 250, 250)
    assert [picture.size[0] for picture in pictures] == [2000, 8 * 112]
    assert all(picture._repr_png_() for picture in pictures), "what a notebook displays"
    assert same is True
    assert "waiting for data: " in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::gpupipe.StandInWarning")
def test_kill_in_mid_epoch(faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lfw").symlink_to(faces)
    monkeypatch.setenv("GPUPIPE_DATA", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(sys, "executable", forked_python.executable())
    *_, undisturbed, runs, state, are_equal = run_cells(EXAMPLES / "kill_in_mid_epoch.ipynb")
    assert undisturbed == 20
    (killed, first), (again, second), (code, third) = runs
    assert killed == again != code == 0
    assert (first, second, third) == (7, 6, 7)
    assert state["epoch"] == 0
    assert are_equal is True


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    assert all(not cell.get("outputs") for cell in content["cells"])
