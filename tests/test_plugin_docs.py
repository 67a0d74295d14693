"""Pages with a package of your own, as a reader uses them: pip installs it, a config loads it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import forked_python

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
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
from gpupipe.testing import check_loader
made = []
for engine in ("pillow", "dataloader"):
    settings = {} if engine == "pillow" else {"engine": engine, "device": "cpu", "workers": 0}
    settings |= {"repeats": 2, "epoch_size": "all", "ids": True}
    settings["pipeline"] = [
        "decode",
        {"resize": {"size": {"from": 32, "to": 48, "epochs": [0, 1]}}},
        {"random_crop": {"size": 24}},
        "random_horizontal_flip",
    ]
    with gpupipe.load("small.yaml", **settings) as loader:
        epochs = [list(loader), list(loader)]
    made.append([torch.cat([b[n] for b in e]) for e in epochs for n in ("id", "image")])
print(loader.config.loader.engine, all(torch.equal(made[0][n], made[1][n]) for n in (0, 2)))
print(all(int((made[0][n].int() - made[1][n].int()).abs().max()) <= 1 for n in (1, 3)))
check_loader(lambda **changes: gpupipe.load("small.yaml", **{"data": {"root": "more"}} | changes))
open("photos/class_0/0.jpg", "wb").write(b"no image")
try:
    with gpupipe.load("small.yaml") as loader:
        list(loader)
except gpupipe.SampleError as e:
    print("photos/class_0/0.jpg: cannot identify" in str(e))
"""
GUIDE = DOCS / "howto" / "engine_plugin.md"
ENGINE = ROOT / "examples" / "pillow_engine"
MAX_LINES = 60


@pytest.fixture(scope="module")
def folder(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reader works: with four photographs in one folder, and the same in two; with the
    packages and configs of the pages; and with `site`, where the packages are installed.
    """
    folder = tmp_path_factory.mktemp("reader")
    photographs = sorted(faces.glob("*/*.jpg"))
    shutil.copytree(faces, folder / "more")
    for n, path in enumerate(photographs[:4]):
        for place in (f"photos/{'ab'[n % 2]}_{n}.jpg", f"photos/class_{n % 2}/{n}.jpg"):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_bytes(path.read_bytes())
    write_files("plugins.md", folder, folder / "mirror")
    shutil.copytree(ENGINE, folder / "pillow_engine", ignore=shutil.ignore_patterns("__pycache__"))
    (small,) = re.findall(r"# small.yaml\n(.*?)```", GUIDE.read_text(), re.S)
    (folder / "small.yaml").write_text(small)
    words = ["install", "-q", "--no-deps", "--no-build-isolation", "--target", "site"]
    packages = ["./mirror", "./pillow_engine"]
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
        (SAME_SAMPLES, ["dataloader True", "True", "True"]),
    ],
    ids=["step and source", "engine"],
)
def test_the_package_of_the_page(script: str, printed: list[str], folder: Path) -> None:
    code = f"import site; site.addsitedir({str(folder / 'site')!r}){script}"
    done = forked_python.run(["-W", "ignore", "-c", code], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == printed


def test_the_engine_of_the_guide_is_two_files_that_the_page_includes() -> None:
    files = sorted(path.name for path in ENGINE.iterdir() if path.name != "__pycache__")
    assert files == ["pillow_engine.py", "pyproject.toml"]
    assert len((ENGINE / "pillow_engine.py").read_text().splitlines()) <= MAX_LINES
    text = GUIDE.read_text()
    included = re.findall(r"^<!-- include: (\S+) -->$", text, re.M)
    assert {(GUIDE.parent / path).resolve() for path in included} == {ENGINE / n for n in files}
    assert "```python" not in text, "what stands in a file is not written twice"
