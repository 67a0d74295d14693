"""The site, built once for all tests."""

import fcntl
import os
from pathlib import Path

import pytest

from helpers import forked_python

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it; test processes that run side by side share it."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            build(folder)
    return folder


def build(folder: Path) -> None:
    command = ["-m", "mkdocs", "build", "--strict", "--quiet"]
    part = folder.with_suffix(".part")
    done = forked_python.run(
        [*command, "--config-file", "docs/site/mkdocs.yml", "--site-dir", part],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    part.rename(folder)
