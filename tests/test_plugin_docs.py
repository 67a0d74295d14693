"""Pages with a package of your own, as a reader uses them: pip installs it, a config loads it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import forked_python

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


PAGES = {"mirror": "plugins.md", "pillow_engine": "howto/engine_plugin.md"}
"""The page of each package."""


@pytest.fixture(scope="module")
def folder(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reader works: with four photographs in one folder, and the same in two; with the
    packages and configs of the pages; and with `site`, where the packages are installed.
    """
    folder = tmp_path_factory.mktemp("reader")
    for n, path in enumerate(sorted(faces.glob("*/*.jpg"))[:4]):
        for place in (f"photos/{'ab'[n % 2]}_{n}.jpg", f"photos/class_{n % 2}/{n}.jpg"):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_bytes(path.read_bytes())
    for package, page in PAGES.items():
        write_files(page, folder, folder / package)
    words = ["install", "-q", "--no-deps", "--no-build-isolation", "--target", "site"]
    packages = [f"./{package}" for package in PAGES]
    subprocess.run(
        [sys.executable, "-m", "pip", *words, *packages], cwd=folder, check=True, timeout=600
    )
    return folder


def write_files(page: str, folder: Path, package: Path) -> None:
    """Write the files that a page shows: the config to the folder, the rest to the package."""
    blocks = re.findall(
        r"```(?:ini|python|yaml)\n# ([\w.]+)\n(.*?)```", (DOCS / page).read_text(), re.S
    )
    assert [Path(name).suffix for name, _ in blocks] == [".cfg", ".py", ".yaml"]
    package.mkdir()
    for name, content in blocks:
        ((folder if name.endswith(".yaml") else package) / name).write_text(content)
    (package / "setup.py").write_text("from setuptools import setup; setup()")


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        (FIELDS, ["['a', 'b'] [0, 0, 1, 1] (4, 3, 64, 64)"] * 2),
        (SAME_SAMPLES, ["dataloader True", "True"]),
    ],
    ids=PAGES,
)
def test_the_package_of_the_page(script: str, printed: list[str], folder: Path) -> None:
    code = f"import site; site.addsitedir({str(folder / 'site')!r}){script}"
    done = forked_python.run(["-W", "ignore", "-c", code], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == printed
