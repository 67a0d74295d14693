"""Folders of data as users have them, and what `gpupipe init` makes of them."""

import io
from pathlib import Path

from click.testing import CliRunner
from PIL import Image

from gpupipe.cli.app import main
from helpers.image_files import encoded

RUN = ("engine=dataloader", "device=cpu", "workers=0", "last_batch=partial")


def jpeg(side: int = 40, color: int = 90, mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (side, side + 8), color).save(stream, "JPEG")
    return stream.getvalue()


def write_images(root: Path, *names: str) -> None:
    """Write an image of the format that its suffix names under each name."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 40), 90).save(path)


def write_mask(path: Path, levels: bytes = b"\0\1\2", mode: str = "L") -> None:
    """Write a mask of 40x48 whose columns have the levels, in turn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = Image.frombytes(mode, (48, 40), (levels * 48)[:48] * 40)
    if mode == "P":
        mask.putpalette([level for n in range(256) for level in (n, 0, 255 - n)])
    path.write_bytes(encoded(mask, path.suffix.removeprefix(".").upper()))


def init(*words: str) -> str:
    """Run `gpupipe init`; return what it prints."""
    done = CliRunner().invoke(main, ["init", *words])
    assert done.exit_code == 0, done.output
    return done.output


def refused(*words: str) -> str:
    """Run `gpupipe init`, which fails and writes nothing; return what it prints."""
    done = CliRunner().invoke(main, ["init", *words])
    assert done.exit_code == 1, done.output
    assert not list(Path().glob("*.yaml")) + list(Path().glob("*_list.csv"))
    return done.output


def init_and_run(*words: str) -> str:
    """Run `gpupipe init`, then `check` and `run` on what it wrote; return what init prints.

    Each doubt and each file that is not read is on the screen and in a comment of the config.
    """
    said = init(*words)
    configs = sorted(Path().glob("*.yaml"))
    assert configs
    for config in configs:
        for command in (["check", str(config)], ["run", str(config), *RUN]):
            done = CliRunner().invoke(main, command)
            assert done.exit_code == 0, done.output
    comments = " ".join("".join(path.read_text() for path in configs).replace("\n#", "").split())
    for line in said.splitlines():
        if line.startswith(("  not certain: ", "  not read: ")):
            assert line.partition(": ")[2] in comments
    return said


def data_of(name: str = "train.yaml") -> str:
    """Return the lines under `data:` of a config, on one line."""
    text = Path(name).read_text().partition("data:")[2].partition("pipeline:")[0]
    return " ".join(text.split())
