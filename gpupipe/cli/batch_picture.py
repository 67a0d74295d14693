"""gpupipe show-batch: a picture of a batch, in the terminal or in a file."""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from gpupipe.cli.arguments import ConfigName, Overrides, options
from gpupipe.cli.output_files import PictureFile, writing

if TYPE_CHECKING:
    from PIL.Image import Image

_FILE = Path("batch.png")
_KITTY_CHUNK = 4096
"""Most bytes of base64 that kitty's protocol takes at once."""


@click.command("show-batch")
@options
def show_batch(
    config: ConfigName,
    overrides: Overrides,
    out: Annotated[
        Path | None,
        PictureFile(),
        f"Write it to this file.  [default: the terminal if it shows pictures, else {_FILE}]",
    ] = None,
    samples: Annotated[int, click.IntRange(1, 64), "Most samples to draw."] = 16,
) -> None:
    """Draw the first batch of CONFIG: each sample with its label, its views side by side, and masks
    laid over their images.
    """
    from gpupipe import config as configs
    from gpupipe.bench import grid
    from gpupipe.cli.console import Screen
    from gpupipe.loader import open_loader

    checked = configs.read(config, [f"batch_size={samples}", "last_batch=partial", *overrides])
    with Screen(False) as screen, open_loader(checked, screen.progress) as loader:
        picture = grid.draw(loader, next(iter(loader)), samples)
    protocol = find_protocol(os.environ) if out is None and sys.stdout.isatty() else ""
    if protocol:
        click.echo("".join(encode_picture(protocol, picture)))
        return
    path = out or _FILE
    with writing(path):
        picture.save(path)
    click.echo(path)


def find_protocol(environment: Mapping[str, str]) -> str:
    """Return how a terminal shows pictures, by what it says of itself: "kitty", "iterm" or ""."""
    program, term = environment.get("TERM_PROGRAM", ""), environment.get("TERM", "")
    if "TMUX" in environment or term.startswith("screen"):
        return ""  # They pass neither protocol on.
    if term in ("xterm-kitty", "xterm-ghostty") or program == "ghostty":
        return "kitty"
    return "iterm" if program in ("iTerm.app", "WezTerm") else ""


def encode_picture(protocol: str, picture: Image) -> Iterator[str]:
    """Yield the escape sequences that show a picture.

    See https://sw.kovidgoyal.net/kitty/graphics-protocol and
    https://iterm2.com/documentation-images.html.
    """
    stream: Any = io.BytesIO()
    picture.save(stream, "PNG")
    text = base64.b64encode(stream.getvalue()).decode()
    if protocol == "iterm":
        yield f"\x1b]1337;File=inline=1;preserveAspectRatio=1:{text}\a"
        return
    chunks = [text[n : n + _KITTY_CHUNK] for n in range(0, len(text), _KITTY_CHUNK)]
    for number, chunk in enumerate(chunks):
        head = "a=T,f=100," if number == 0 else ""
        yield f"\x1b_G{head}m={int(number < len(chunks) - 1)};{chunk}\x1b\\"
