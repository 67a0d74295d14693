"""Folders of images some of which are broken, each in a way of its own."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import gpupipe
from helpers.image_files import encoded
from helpers.loaders import loading

SIDE = 96


AUGMENT = [
    "decode",
    {"random_affine": {"degrees": 20, "scale": [0.8, 1.2], "interpolation": "bilinear"}},
    "random_horizontal_flip",
]


def shares(form: str, *percents: int) -> dict[str, Callable[[Path, Image.Image], None]]:
    def cut(percent: int) -> Callable[[Path, Image.Image], None]:
        def write(path: Path, image: Image.Image) -> None:
            data = encoded(image, form)
            path.write_bytes(data[: len(data) * percent // 100])

        return write

    return {f"{form} cut at {percent} %": cut(percent) for percent in percents}


def holds(data: bytes) -> Callable[[Path, Image.Image], None]:
    return lambda path, image: path.write_bytes(data) and None


def to_a_folder(path: Path, image: Image.Image) -> None:
    path.unlink()
    path.mkdir()


def to_a_broken_link(path: Path, image: Image.Image) -> None:
    path.unlink()
    path.symlink_to("nowhere.jpg")


def to_a_fifo(path: Path, image: Image.Image) -> None:
    path.unlink()
    os.mkfifo(path)


def to_a_device(path: Path, image: Image.Image) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def damaged_png(path: Path, image: Image.Image) -> None:
    data = bytearray(encoded(image, "PNG"))
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def garbled_jpeg(path: Path, image: Image.Image) -> None:
    """A progressive JPEG with a second start of frame in the middle of its data."""
    data = encoded(image, "JPEG", progressive=True)
    middle = len(data) // 2
    path.write_bytes(data[:middle] + b"\xff\xc2\xff\xd8" * 20 + data[middle + 80 :])


CUT_OFF = r"a {} that was cut off: its end is missing \([\d,]+ bytes are there\)"


BAD: dict[str, tuple[Callable[[Path, Image.Image], Any], str]] = {
    **{name: (write, CUT_OFF.format("JPEG")) for name, write in shares("JPEG", 10, 50, 90).items()},
    **{name: (write, CUT_OFF.format("PNG")) for name, write in shares("PNG", 10, 90).items()},
    **{name: (write, CUT_OFF.format("WebP")) for name, write in shares("WEBP", 50).items()},
    **{name: (write, CUT_OFF.format("BMP")) for name, write in shares("BMP", 50).items()},
    **{
        name: (write, CUT_OFF.format("JPEG 2000")) for name, write in shares("JPEG2000", 50).items()
    },
    **{
        name: (write, "image file is truncated")
        for name, write in (shares("TIFF", 50) | shares("PPM", 50)).items()
    },
    "damaged PNG": (damaged_png, "PNG: unrecognized data stream"),
    "garbled JPEG": (garbled_jpeg, "its data are damaged"),
    "empty": (holds(b""), "^the file is empty$"),
    "one byte": (holds(b"\xff"), r"not an image in a known format \(it begins with b'\\xff'\)"),
    "missing": (lambda path, image: path.unlink(), "^no such file or directory$"),
    "broken link": (to_a_broken_link, "^no such file or directory$"),
    "folder": (to_a_folder, "^is a directory$"),
    "text": (
        holds(b"hello world\n" * 50),
        r"not an image in a known format \(it begins with b'hello world",
    ),
    "HTML": (
        holds(b"<!DOCTYPE html><html>404</html>"),
        "not an image in a known format .*DOCTYPE html",
    ),
    "PDF": (
        lambda path, image: path.write_bytes(encoded(image, "PDF")),
        "not an image in a known format .*%PDF-",
    ),
    "zeros": (holds(bytes(5000)), r"not an image in a known format \(it begins with b'\\x00"),
}


"""By name: what makes a bad file of a good one, and the reason that gpupipe must give (a regular
expression).
"""


IRREGULAR = {
    "FIFO": (to_a_fifo, "^not a regular file, but a pipe, a socket or a device$"),
    "link to a device": (to_a_device, "^not a regular file, but a pipe, a socket or a device$"),
}


SLOTS = "x.....xx......xxxxxxxxxxxxxxxx....................x.........x"


"""One letter a sample, x a bad one: in the first, the middle and the last batch, several in one,
whole batches of them; 40 are good.
"""


def sample(root: Path, n: int) -> Path:
    return root / f"class_{n // 20}" / f"{n:03}.jpg"


BAD_IDS = [n for n, letter in enumerate(SLOTS) if letter == "x"]


GOOD_IDS = [n for n, letter in enumerate(SLOTS) if letter == "."]


KIND_OF = {id: list(BAD)[i % len(BAD)] for i, id in enumerate(BAD_IDS)}


def infect(root: Path, pictures: list[Image.Image]) -> None:
    for id, kind in KIND_OF.items():
        BAD[kind][0](sample(root, id), pictures[id % len(pictures)])


load = loading(engine="dali", threads=2)


def epoch(loader: gpupipe.Loader) -> list[dict[str, torch.Tensor]]:
    return list(loader)


def change(loader: gpupipe.Loader) -> None:
    """To be called before files are changed: batches of the next epoch are in flight already, and
    are dropped.
    """
    loader.load_state_dict(loader.state_dict())


def ids(batches: list[dict[str, torch.Tensor]]) -> list[int]:
    return [i for batch in batches for i in batch["id"].tolist()]
