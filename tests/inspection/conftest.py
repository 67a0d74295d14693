"""Photographs with planted faults, as training and validation data."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from PIL import Image

from gpupipe import config as configs
from gpupipe.inspection.scan import Scan, scan
from gpupipe.runtime.progress import ignore_progress

LONG_AGO = 1_000_000_000


def open_photo(path: str | Path) -> Image.Image:
    """Decode an image, and close its file."""
    with Image.open(path) as image:
        image.load()
    return image


@dataclass
class Planted:
    """Two data sets, and the names of the files of each finding: sets of `data/class/file`."""

    root: Path
    expected: dict[str, set[frozenset[str]]] = field(default_factory=dict)

    def plant(self, kinds: str, *names: str) -> None:
        for kind in kinds.split():
            self.expected.setdefault(kind, set()).add(frozenset(names))

    def config(self, data: str) -> dict[str, object]:
        source = {"source": "folder", "root": str(self.root / data)}
        return {"data": source, "pipeline": ["decode"], "loader": {"batch_size": 2}}

    def scan(self, data: str, headers_only: bool = False) -> Scan:
        config = configs.read(self.config(data))
        return scan(data, config, config.source.index(), headers_only, ignore_progress)


@pytest.fixture(scope="session")
def planted(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """30 photographs to train on and 10 to validate, and 9 files that should be found."""
    pytest.importorskip("cv2", reason="needs OpenCV: install the extra 'inspect'")
    root = tmp_path_factory.mktemp("planted")
    planted = Planted(root)
    names = sorted(path.relative_to(photos) for path in photos.glob("*/*.jpg"))[:40]
    paths = [root / ("val" if n % 4 == 3 else "train") / str(n % 3) for n in range(40)]
    for name, path in zip(names, paths, strict=True):
        path.mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / name, path / name.name)
    files = [path / name.name for name, path in zip(names, paths, strict=True)]

    def say(path: Path) -> str:
        return path.relative_to(root).as_posix()

    shutil.copy(files[0], files[0].with_name("copy.jpg"))
    planted.plant("duplicates", say(files[0]), say(files[0].with_name("copy.jpg")))
    leaked = root / "val/1/leaked.jpg"
    shutil.copy(files[1], leaked)
    planted.plant("leaks", say(files[1]), say(leaked))
    encoded = root / "train/0/encoded.jpg"
    open_photo(files[2]).save(encoded, quality=60)
    planted.plant("near labels", say(files[2]), say(encoded))
    small = root / "val/1/small.png"
    photo = open_photo(files[4])
    photo.resize((photo.width // 2, photo.height // 2)).save(small)
    planted.plant("near leaks", say(files[4]), say(small))
    cut = root / "train/0/cut.jpg"
    cut.write_bytes(files[5].read_bytes()[: files[5].stat().st_size * 2 // 3])
    planted.plant("truncated", say(cut))
    rotated = root / "train/0/rotated.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    open_photo(files[6]).crop((0, 0, 200, 150)).save(rotated, exif=exif)
    planted.plant("rotated", say(rotated))
    lying = root / "val/2/lying.jpg"
    open_photo(files[8]).crop((0, 0, 200, 150)).save(lying, format="PNG")
    planted.plant("extensions", say(lying))
    blank = root / "train/1/blank.png"
    Image.new("RGB", (64, 48), (20, 30, 40)).save(blank)
    planted.plant("uniform", say(blank))
    page = root / "val/0/page.jpg"
    page.write_text("<html>404</html>")
    planted.plant("broken", say(page))
    for path in root.glob("*/*/*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return planted
