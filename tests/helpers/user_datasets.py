"""Data sets as users write them, for the source python."""

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset


class Faces(Dataset[Any]):
    """The files of a folder of class folders, in one of many forms."""

    def __init__(self, root: str | Path, form: str = "bytes") -> None:
        self.paths = sorted(Path(root).glob("*/*.jpg"))
        self.form = form

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        label = index % 7
        if self.form == "path":
            return path, label
        if self.form == "dict":
            return {"image": path.read_bytes(), "label": label, "weight": index / 2}
        if self.form == "pillow":
            return Image.open(path).convert("RGB"), label
        if self.form == "tensor":
            return torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1), label
        if self.form == "array":
            return np.array(Image.open(path)), label
        return path.read_bytes(), label


class Batched(Faces):
    """Counts its calls, and has no use for single items but the first."""

    calls = 0

    def __getitem__(self, index: int) -> Any:
        assert index == 0
        return super().__getitem__(index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        type(self).calls += 1
        return [Faces.__getitem__(self, n) for n in indices]


class Faulty(Faces):
    """Item 3 is at fault."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        if index != 3:
            return image, label
        if self.form == "array":
            return image[:9], label
        return {"bytes": b"no image", "path": Path("no/such.jpg"), "pillow": 5}[self.form], label


class Lying(Faces):
    """Has fewer items than it says."""

    def __len__(self) -> int:
        return super().__len__() + 2


class Drawing(Faces):
    """Draws from a global generator, as transforms do."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image, label + random.randrange(9)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([b""])


class Elsewhere(Faces):
    """Says in which process an item was read; some items are at fault there."""

    def __getitem__(self, index: int) -> Any:
        if index == self.hangs:
            time.sleep(600)
        if index == self.dies:
            os._exit(3)
        if index == self.raises:
            raise KeyError("no such key")
        return {"image": self.paths[index].read_bytes(), "process": os.getpid()}

    hangs = dies = raises = -1

    def __init__(self, root: str | Path, **at: int) -> None:
        super().__init__(root)
        self.__dict__.update(at)


class PathsElsewhere(Elsewhere):
    """Has paths, and lists the items that this process was asked for."""

    def __getitem__(self, index: int) -> Any:
        self.__dict__.setdefault("asked", []).append(index)
        return super().__getitem__(index) | {"image": self.paths[index]}


def make_faces(root: str, form: str = "bytes") -> Faces:
    return Faces(root, form)
