"""What would take the process down, and so is run in one of its own."""

import shutil
from pathlib import Path

import pytest

from helpers import forked_python

PROGRAM = """
import sys
import gpupipe

root, step, bad = sys.argv[1], sys.argv[2], int(sys.argv[3])
steps = ["decode", step] if step else ["decode"]
config = {"data": {"source": "folder", "root": root}, "pipeline": steps}
options = dict(engine="dali", device="cpu", batch_size=64, threads=2)
options |= dict(on_error="skip", max_bad=0.5)
for seed in range(4):
    with gpupipe.load(config, seed=seed, **options) as loader:
        delivered = sum(len(batch["label"]) for batch in loader)
        assert len(loader.engine.quarantine) == bad, len(loader.engine.quarantine)
        assert delivered == len(loader.index) - bad, delivered
"""


@pytest.mark.parametrize("step", ["", "random_horizontal_flip"])
@pytest.mark.parametrize("content", [b"", b"hello world"], ids=["empty", "text"])
def test_headers_that_cannot_be_parsed_do_not_crash_dali(
    faces: Path, tmp_path: Path, content: bytes, step: str
) -> None:
    """DALI's decoder, left alone, crashes on one of them among 64 (see engines/dali/reader.py)."""
    root = shutil.copytree(faces, tmp_path / "faces")
    files = sorted(root.glob("*/*.jpg"))
    for n in range(3):
        for file in files[:40]:
            shutil.copy(file, file.with_name(f"{n}_{file.name}"))
    every = sorted(root.glob("*/*.jpg"))
    for file in every[5::20]:
        file.write_bytes(content)
    done = forked_python.run(["-c", PROGRAM, root, step, len(every[5::20])])
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
