"""Samples of several fields: an image, a mask that moves with it, an array, and numbers from the
index.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpupipe
from helpers.loaders import load
from helpers.plugin import install

SOURCE = '''
import numpy as np
from pathlib import Path
from gpupipe.dataset.columns import ArrayLayout, StringArray
from gpupipe.dataset.file_columns import FileColumn, SpanColumn
from gpupipe.dataset.index import build
from gpupipe.dataset.source import Source
from gpupipe.pipeline.step import Spec


class Fields(Source):
    """Of a folder: N.png, N.mask.png, all arrays in one file, and weights."""

    root: Path
    shapes: tuple[tuple[int, ...], ...] | None = None

    def specs(self):
        depth = Spec.of_image(2, 4, 5, dtype="float32")
        return {"image": Spec(), "mask": Spec(), "depth": depth}

    def index(self, progress=None):
        n = len(list(self.root.glob("*.mask.png")))
        rows = np.arange(n, dtype=np.int64)
        bytes = 2 * 4 * 5 * 4
        ends = (".png", ".mask.png")
        images, masks = (StringArray.from_strings(f"{i}{end}" for i in range(n)) for end in ends)
        root = str(self.root)
        places = np.zeros(n, np.int32), rows * bytes + 3, rows * 0 + bytes
        layout = ArrayLayout("float32", (2, 4, 5))
        depth = SpanColumn(root, StringArray.from_strings(["depth.bin"]), *places, layout)
        columns = {"image": FileColumn(root, images), "mask": FileColumn(root, masks)}
        columns["depth"] = depth
        values = {"weight": rows / 4, "box": rows[:, None] + np.arange(4)}
        names = [f"{i}.png" for i in range(n)]
        return build(root, names, rows % 2, ["even", "odd"], columns=columns, values=values)
'''

COUNT, SIDE = 12, 40
STEPS: list[Any] = [
    {"decode": {"on": "image"}},
    {"decode": {"mode": "gray", "on": "mask"}},
    {"random_affine": {"degrees": 30, "scale": [0.7, 1.3], "fill": 9, "on": ["image", "mask"]}},
    {"random_horizontal_flip": {"on": ["image", "mask"]}},
]


def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Masks with the classes 0, 100 and 200; images that show in gray what the masks say; depth
    that counts; in a file with three bytes before it.
    """
    monkeypatch.syspath_prepend(install(tmp_path, "fields", SOURCE, source_fields="Fields"))
    folder = tmp_path / "data"
    folder.mkdir()
    for n in range(COUNT):
        mask = np.full((SIDE, SIDE), 100, np.uint8)
        mask[: 10 + n, 20:] = 200
        Image.fromarray(mask).save(folder / f"{n}.mask.png")
        Image.fromarray(np.dstack([mask] * 3)).save(folder / f"{n}.png")
    depth = np.arange(COUNT * 40, dtype=np.float32).tobytes()
    (folder / "depth.bin").write_bytes(b"xyz" + depth)
    return {"source": "fields", "root": folder, "masks": ["mask"]}


def loaded(data: dict[str, Any], steps: list[Any] = STEPS, **options: Any) -> gpupipe.Loader:
    return load(None, steps, data=data, **{"batch_size": 5, **options})


def samples(loader: gpupipe.Loader) -> dict[int, dict[str, Any]]:
    with loader:
        return {
            int(id): {name: t[i] for name, t in batch.items()}
            for batch in loader
            for i, id in enumerate(batch["id"])
        }
