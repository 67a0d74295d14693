"""A job on PNG files with the given contents, for tests of what is done about bad ones."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gpupipe import config
from gpupipe.engines.base import Job
from gpupipe.runtime.progress import ignore_progress
from helpers.image_files import encoded

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 9, 3), np.uint8))


def job_of(root: Path, files: dict[str, bytes], **options: Any) -> Job:
    """A job on these files, in the order of their names."""
    (root / "class").mkdir(parents=True)
    for name in files:
        (root / "class" / name).write_bytes(encoded(PICTURE, "PNG"))
    written = {"data": {"source": "folder", "root": root}, "pipeline": ["decode"]}
    checked = config.read(written, device="cpu", quarantine=root / "bad.jsonl", **options)
    index = checked.source.index(ignore_progress)
    for name, content in files.items():
        (root / "class" / name).write_bytes(content)
    return Job(index, checked.pipeline, checked.loader, 1)
