"""docs/plugins.md, as a reader uses it: its package is installed with pip, its config is loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"
SCRIPT = """
import gpupipe
for engine in ("dataloader", "dali"):
    settings = {"engine": engine, "device": "cpu", "workers": 0, "shuffle": False}
    with gpupipe.load("mirror.yaml", **settings) as loader:
        (batch,) = loader
        print(loader.index.classes, batch["label"].tolist(), tuple(batch["image"].shape))
"""


def test_the_package_of_the_page(faces: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```(?:ini|python|yaml)\n# ([\w.]+)\n(.*?)```", PAGE.read_text(), re.S)
    assert [name for name, _ in blocks] == ["setup.cfg", "mirror.py", "mirror.yaml"]
    (tmp_path / "mirror").mkdir()
    for name, text in blocks:
        folder = tmp_path if name.endswith(".yaml") else tmp_path / "mirror"
        (folder / name).write_text(text)
    (tmp_path / "mirror" / "setup.py").write_text("from setuptools import setup; setup()")
    (tmp_path / "photos").mkdir()
    for n, path in enumerate(sorted(faces.glob("*/*.jpg"))[:4]):
        (tmp_path / "photos" / f"{'ab'[n % 2]}_{n}.jpg").write_bytes(path.read_bytes())
    site = tmp_path / "site"
    words = ["install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run(
        [sys.executable, "-m", "pip", *words, "./mirror"], cwd=tmp_path, check=True, timeout=600
    )
    code = f"import site; site.addsitedir({str(site)!r}){SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['a', 'b'] [0, 0, 1, 1] (4, 3, 64, 64)"] * 2
