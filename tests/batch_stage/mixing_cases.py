"""What the tests of the batch stage share: batches, and stages that are built from YAML."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpupipe.batch_stage.mixer import BatchMixer
from gpupipe.batch_stage.stage import BatchStage, build_batch_stage
from gpupipe.dataset.spec import Spec
from gpupipe.schema import yaml_files
from gpupipe.schema.document import Document

CLASSES = ["ape", "bee", "cow", "dog"]
IMAGE = Spec.of_array("float32", (3, 12, 10), "CHW")
BYTES = Spec.of_array("uint8", (3, 12, 10), "CHW")
MASK = replace(Spec.of_array("uint8", (1, 12, 10), "CHW"), kind="mask")


def stage_of(
    *steps: Any, fields: dict[str, Spec] | None = None, main: Sequence[str] = ("image",)
) -> BatchStage:
    """Build a stage from steps as YAML has them; on float32 images (3, 12, 10) by default."""
    document = Document("c.yaml", {"batch": list(steps)})
    return build_batch_stage(document, ("batch",), fields or {"image": IMAGE}, main)


def mixer_of(*steps: Any, seed: int = 0, **more: Any) -> BatchMixer:
    """Build what runs such a stage, on data of four classes."""
    return BatchMixer(stage_of(*steps, **more), seed, CLASSES)


def read(folder: Path, text: str) -> Document:
    """Read YAML from a file, so that keys and values have lines."""
    (folder / "c.yaml").write_text(text)
    return yaml_files.read(folder / "c.yaml")


def ids(count: int, first: int = 0) -> Any:
    return np.arange(first, first + count, dtype=np.int64)


def made_batch(count: int = 5, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Return images (count, 3, 12, 10) that all differ, and labels of four classes."""
    pixels = torch.from_numpy(np.random.default_rng(count).integers(0, 256, (count, 3, 12, 10)))
    image = pixels.to(dtype) if dtype == torch.uint8 else (pixels / 255).to(dtype)
    return {"image": image, "label": torch.arange(count) % len(CLASSES)}
