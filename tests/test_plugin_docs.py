"""Pages with a package of your own, as a reader uses them: pip installs it, a config loads it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
FIELDS = """
import gpupipe
for engine in ("dataloader", "dali"):
    settings = {"engine": engine, "device": "cpu", "workers": 0, "shuffle": False}
    with gpupipe.load("mirror.yaml", **settings) as loader:
        (batch,) = loader
        print(loader.index.classes, batch["label"].tolist(), tuple(batch["image"].shape))
"""
SAME_SAMPLES = """
import torch
import gpupipe
made = []
for engine in ("pillow", "dataloader"):
    settings = {} if engine == "pillow" else {"engine": engine, "device": "cpu", "workers": 0}
    with gpupipe.load("small.yaml", ids=True, **settings) as loader:
        epoch = list(loader)
        made.append([torch.cat([batch[name] for batch in epoch]) for name in ("id", "image")])
print(loader.config.loader.engine, torch.equal(made[0][0], made[1][0]))
print(int((made[0][1].int() - made[1][1].int()).abs().max()) <= 1)
"""


@pytest.fixture
def folder(faces: Path, tmp_path: Path) -> Path:
    """Where the reader works: with four photographs in one folder, and the same in two."""
    for n, path in enumerate(sorted(faces.glob("*/*.jpg"))[:4]):
        for place in (f"photos/{'ab'[n % 2]}_{n}.jpg", f"photos/class_{n % 2}/{n}.jpg"):
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("page", "package", "script", "printed"),
    [
        ("plugins.md", "mirror", FIELDS, ["['a', 'b'] [0, 0, 1, 1] (4, 3, 64, 64)"] * 2),
        ("howto/engine_plugin.md", "pillow_engine", SAME_SAMPLES, ["dataloader True", "True"]),
    ],
)
def test_the_package_of_the_page(
    page: str, package: str, script: str, printed: list[str], folder: Path
) -> None:
    text = (DOCS / page).read_text()
    blocks = re.findall(r"```(?:ini|python|yaml)\n# ([\w.]+)\n(.*?)```", text, re.S)
    assert [Path(name).suffix for name, _ in blocks] == [".cfg", ".py", ".yaml"]
    (folder / package).mkdir()
    for name, content in blocks:
        place = folder if name.endswith(".yaml") else folder / package
        (place / name).write_text(content)
    (folder / package / "setup.py").write_text("from setuptools import setup; setup()")
    site = folder / "site"
    words = ["install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run(
        [sys.executable, "-m", "pip", *words, f"./{package}"], cwd=folder, check=True, timeout=600
    )
    code = f"import site; site.addsitedir({str(site)!r}){script}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == printed
