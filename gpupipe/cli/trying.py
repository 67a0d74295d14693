"""`gpupipe try` shows what gpupipe does with a folder of images: no config, no download."""

from pathlib import Path
from time import monotonic
from typing import Annotated

import click

from gpupipe.cli.arguments import OutputFolder, options, writing
from gpupipe.cli.compare import measure_parity
from gpupipe.cli.console import Screen, console, core_numbers, read
from gpupipe.cli.init import write_configs
from gpupipe.cli.printing import announce, say
from gpupipe.errors import GpupipeError, counted
from gpupipe.runtime.installation import install_command, is_in_cache

_PARITY_SAMPLES = 8
_DRAWN = 16
_ADVICE = "A longer --seconds, with nothing beside it, would tell."
_LEAST_SECONDS = 5.0
"""Seconds for rates, if the steps before them took too long."""


@click.command("try")
@click.argument("folder", type=click.Path(path_type=Path))
@options
def try_(
    folder: Path,
    out: Annotated[Path, OutputFolder(), "Where the config and the picture go."] = Path(
        "gpupipe_try"
    ),
    seconds: Annotated[
        float, click.FloatRange(1), "About how long it may take; the rates get what is left."
    ] = 60.0,
) -> None:
    """Show what gpupipe does with the images in FOLDER, within a minute: what it finds, whether its
    pixels are torchvision's, how fast it is beside a DataLoader, and a picture of a batch.
    """
    announce(f"reading {folder}")
    if out.resolve().is_relative_to(folder.resolve()):
        raise click.BadParameter(
            f"'{out}' is in the folder of the data, where the picture would be one of the images: "
            "take another folder, such as ../gpupipe_try",
            param_hint="--out",
        )
    from gpupipe.bench import tables
    from gpupipe.bench.comparison import describe_verdict
    from gpupipe.bench.first_look import compare_within
    from gpupipe.loading.assembly import resolve

    ends_at = monotonic() + seconds
    path = out / "train.yaml"
    say(f"1. What is in {folder}")
    write_configs(folder, path, force=True)
    checked, index = read(str(path), ())
    say("\n2. A batch, as a model gets it")
    names = _draw(path, out / "batch.png")
    say("\n3. The same pixels as torchvision's, step by step")
    agreements = measure_parity(checked, index, _PARITY_SAMPLES, None, resolve(checked).engine.name)
    cores = core_numbers(None)
    say(f"\n4. Images a second on {counted(len(cores), 'core')}, from these files")
    with Screen(False) as screen:
        left = max(_LEAST_SECONDS, ends_at - monotonic())
        comparison = compare_within(checked, str(path), cores, left, screen.counter("compare"))
    console().print(tables.comparison_table(comparison))
    for sentence in describe_verdict(comparison, _ADVICE):
        say(sentence)
    say("\n5. Write next")
    if is_in_cache():
        click.echo(f"  {install_command('cpu')}  # what ran here is in a cache")
    click.echo(f"  import gpupipe\n  for batch in gpupipe.load({str(path)!r}):")
    click.echo("      ...  # " + ", ".join(f'batch["{name}"]' for name in names))
    if not all(a.holds for a in agreements):
        raise GpupipeError("the pixels are not torchvision's: see the table above")


def _draw(config: Path, path: Path) -> list[str]:
    """Write a picture of the first batch of a config, if it has images; return its names."""
    from gpupipe import config as configs
    from gpupipe.bench import grid
    from gpupipe.loader import open_loader

    small = configs.read(str(config), [f"batch_size={_DRAWN}", "last_batch=partial"])
    with Screen(False) as screen, open_loader(small, screen.progress) as loader:
        batch = next(iter(loader))
        try:
            picture = grid.draw(loader, batch, _DRAWN)
        except grid.NoImagesError as e:
            say(f"not drawn: {e}")
            return list(batch)
    with writing(path):
        picture.save(path)
    say(f"{path}: a picture of its first samples, as they are augmented")
    return list(batch)
