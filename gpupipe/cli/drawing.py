"""`gpupipe gallery` draws the effect of steps; `gpupipe show-batch` draws a batch."""

import base64
import io
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from gpupipe.cli.arguments import ConfigName, OutputFolder, Overrides, PictureFile, options, writing
from gpupipe.cli.catalog import complete_target
from gpupipe.cli.console import Screen
from gpupipe.cli.printing import announce, print_warning, say
from gpupipe.errors import GpupipeError, counted, did_you_mean

if TYPE_CHECKING:
    from PIL.Image import Image

    from gpupipe.bench.gallery import Gallery
    from gpupipe.bench.gallery_page import StepPictures

_ALL = "all"


@click.command()
@click.argument("targets", nargs=-1, metavar="[PIPELINE|STEP]...", shell_complete=complete_target)
@options
def gallery(
    targets: tuple[str, ...],
    out: Annotated[Path, OutputFolder(), "The folder for the pages."],
    image: Annotated[
        Path | None,
        click.Path(dir_okay=False, exists=True, path_type=Path),
        "The photograph.  [default: a drawn face]",
    ] = None,
    engine: Annotated[
        str | None, "The engine that runs the steps.  [default: the one of torchvision's functions]"
    ] = None,
    side: Annotated[int, click.IntRange(16, 1024), "The side of a picture in pixels."] = 120,
    seed: Annotated[int, click.IntRange(0), "The seed of the draws."] = 1,
    suffix: Annotated[Literal["png", "jpg"], "--format", "The format of the pages."] = "png",
) -> None:
    """Draw what steps do to a photograph: the original, and eight draws of each step.

    Without an argument it draws every step. STEP may have parameters, as in YAML: "random_affine:
    {degrees: 30}". Of a PIPELINE it draws the image after each step. There is one page for each
    step, and the page "all".
    """
    announce("drawing")
    from gpupipe.bench.gallery import open_gallery
    from gpupipe.bench.gallery_page import draw_page
    from gpupipe.engines import registry

    if engine is not None:
        registry.find(engine)
    with open_gallery(image, engine, seed) as opened:
        rows = [row for target in targets for row in _draw_target(opened, target)]
        rows = rows or list(_draw_every_step(opened))
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, row in zip(_name_pages(rows), rows, strict=True):
            draw_page([row], side).save(out / f"{name}.{suffix}")
        draw_page(rows, side).save(out / f"{_ALL}.{suffix}")
    say(f"{out}: {counted(len(rows), 'page')}, and all of them in {_ALL}.{suffix}")


def _name_pages(rows: "Sequence[StepPictures]") -> Iterator[str]:
    """Yield the name of each row's page: the name of the row, then NAME_2, NAME_3 if it repeats."""
    seen = Counter[str]()
    for row in rows:
        seen[row.name] += 1
        yield row.name if seen[row.name] == 1 else f"{row.name}_{seen[row.name]}"


def _draw_target(opened: "Gallery", target: str) -> "Iterator[StepPictures]":
    from gpupipe.pipeline.step_registry import STEPS
    from gpupipe.schema import yaml_files

    name, parameters = _parse_step(target)
    if name in STEPS.names():
        yield opened.draw_step(name, parameters)
    elif parameters is None and (
        name in yaml_files.names("pipelines") or name.endswith(yaml_files.SUFFIXES)
    ):
        yield from opened.draw_pipeline(name)
    else:
        names = [*STEPS.names(), *yaml_files.names("pipelines")]
        raise click.BadParameter(
            f"there is no step or pipeline '{name}'{did_you_mean(name, names)}",
            param_hint="PIPELINE|STEP",
        )


def _draw_every_step(opened: "Gallery") -> "Iterator[StepPictures]":
    """Draw every step; print which ones cannot be drawn, and why."""
    from gpupipe.pipeline.step_registry import STEPS

    for name in STEPS.names():
        try:
            yield opened.draw_step(name)
        except (GpupipeError, LookupError) as e:
            print_warning(f"{name} is left out: {e.args[0] if e.args else e}")


def _parse_step(text: str) -> tuple[str, dict[str, Any] | None]:
    """Split "name: {parameter: value}" into the name and the parameters, None without any."""
    from gpupipe.schema import yaml_files

    if ":" not in text:
        return text, None
    data = yaml_files.parse(text, "STEP").data
    if not isinstance(data, dict) or len(data) != 1:
        raise click.BadParameter(
            "write one step, as in YAML: 'name: {parameter: value}'", param_hint="PIPELINE|STEP"
        )
    ((name, parameters),) = data.items()
    if not isinstance(parameters, dict | None):
        raise click.BadParameter(
            f"the parameters of '{name}' are no mapping: write '{name}: {{parameter: value}}'",
            param_hint="PIPELINE|STEP",
        )
    return name, parameters or {}


_FILE = Path("batch.png")
_KITTY_CHUNK = 4096
"""The largest number of base64 bytes in one escape sequence of kitty's protocol."""


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
    announce(f"reading {config}")
    from gpupipe import config as configs
    from gpupipe.bench import grid
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
    """Return the protocol with which the terminal shows pictures: "kitty", "iterm" or ""."""
    program, term = environment.get("TERM_PROGRAM", ""), environment.get("TERM", "")
    if "TMUX" in environment or term.startswith("screen"):
        return ""  # tmux and screen pass on neither protocol
    if term in ("xterm-kitty", "xterm-ghostty") or program == "ghostty":
        return "kitty"
    return "iterm" if program in ("iTerm.app", "WezTerm") else ""


def encode_picture(protocol: str, picture: "Image") -> Iterator[str]:
    """Yield the escape sequences that show a picture, in the protocol "kitty" or "iterm".

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
