"""ZIP archives of tests, as Python's zipfile writes them."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from PIL import Image


def png(level: int, side: int = 8) -> bytes:
    """Return a gray PNG of one level."""
    stream = io.BytesIO()
    Image.new("L", (side, side), level).save(stream, "PNG")
    return stream.getvalue()


def write_zip(path: Path, files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """Write an archive of these files, by their names."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path
