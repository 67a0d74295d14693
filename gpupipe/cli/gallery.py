"""The command gallery: pictures of what steps do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from gpupipe.cli.arguments import complete_target, options
from gpupipe.cli.output_files import OutputFolder, writing
from gpupipe.errors import GpupipeError, did_you_mean

if TYPE_CHECKING:
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
        str | None,
        "The engine that runs the steps.  [default: the one of torchvision's functions]",
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
    from gpupipe.bench.gallery import open_gallery
    from gpupipe.bench.gallery_page import draw_page
    from gpupipe.engines import registry

    if engine is not None:
        registry.find(engine)
    with open_gallery(image, engine, seed) as opened:
        rows = list(_draw_rows(opened, targets))
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, row in zip(_name_pages(rows), rows, strict=True):
            draw_page([row], side).save(out / f"{name}.{suffix}")
        draw_page(rows, side).save(out / f"{_ALL}.{suffix}")
    click.echo(f"{out}: {len(rows)} pages, and all of them in {_ALL}.{suffix}")


def _name_pages(rows: Sequence[StepPictures]) -> Iterator[str]:
    """Name the pages after their rows; the second of a name gets the number 2."""
    seen = Counter[str]()
    for row in rows:
        seen[row.name] += 1
        yield row.name if seen[row.name] == 1 else f"{row.name}_{seen[row.name]}"


def _draw_rows(opened: Gallery, targets: Sequence[str]) -> Iterator[StepPictures]:
    if not targets:
        yield from _draw_every_step(opened)
    for target in targets:
        yield from _draw_target(opened, target)


def _draw_target(opened: Gallery, target: str) -> Iterator[StepPictures]:
    from gpupipe.pipeline.step_registry import STEPS
    from gpupipe.schema import builtin_configs

    name, parameters = _parse_step(target)
    if name in STEPS.names():
        yield opened.draw_step(name, parameters)
    elif parameters is None and (
        name in builtin_configs.names("pipelines") or name.endswith(builtin_configs.SUFFIXES)
    ):
        yield from opened.draw_pipeline(name)
    else:
        known = [*STEPS.names(), *builtin_configs.names("pipelines")]
        raise click.BadParameter(
            f"there is no step or pipeline '{name}'{did_you_mean(name, known)}",
            param_hint="PIPELINE|STEP",
        )


def _draw_every_step(opened: Gallery) -> Iterator[StepPictures]:
    """Draw every step; print which ones cannot be drawn, and why."""
    from gpupipe.pipeline.step_registry import STEPS

    for name in STEPS.names():
        try:
            yield opened.draw_step(name)
        except (GpupipeError, LookupError) as e:
            click.echo(f"gpupipe: {name} is left out: {e.args[0] if e.args else e}", err=True)


def _parse_step(text: str) -> tuple[str, dict[str, Any] | None]:
    """Split "name: {parameter: value}" into the name and the parameters, None without any."""
    from gpupipe.schema import yaml_parser

    if ":" not in text:
        return text, None
    data = yaml_parser.parse(text, "STEP").data
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
