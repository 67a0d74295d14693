"""gpupipe init: write a config for a folder of data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpupipe.cli.console import Screen
from gpupipe.cli.output_files import writing
from gpupipe.cli.schema import FOLDER as SCHEMAS
from gpupipe.errors import GpupipeError

if TYPE_CHECKING:
    from gpupipe.init.detect import Detected
    from gpupipe.init.survey import Survey


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("train.yaml"),
    show_default=True,
    help="The config to write; the one for validation data is called val.yaml beside it.",
)
@click.option("--force", is_flag=True, help="Replace files that are there already.")
def init(folder: Path, out: Path, force: bool) -> None:
    """Look at FOLDER, and write a config that reads it: class folders, a list of files, tar shards,
    TFRecord, .rec, .zip, LMDB, .npy and .npz. Validation data gets a config of its own.
    """
    from gpupipe import config as configs
    from gpupipe.init.config_text import write_text
    from gpupipe.init.detect import TRAIN, VAL, detect
    from gpupipe.init.survey import survey

    parts = detect(folder)
    paths = {TRAIN: out, VAL: _val_path(out)}
    for part in parts:
        if paths[part].exists() and not force:
            raise GpupipeError(f"{paths[part]} is there already: take another --out, or --force")
    with Screen(False) as screen:
        surveys = {part: survey(found, screen.progress) for part, found in parts.items()}
    for part, found in parts.items():
        path = paths[part]
        schema = os.path.relpath(Path(SCHEMAS) / "config.json", path.parent)
        facts = _compare(part, parts, surveys)
        text = write_text(part, str(folder), found, surveys[part], facts, schema)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        configs.read(path)
        count, classes = surveys[part].count, len(surveys[part].classes)
        click.echo(f"{path}: source {found.source}, {count:,} samples, classes: {classes:,}")
    click.echo(f"Try it: gpupipe run {out}")


def _val_path(out: Path) -> Path:
    """Return the path of the config for validation: val.yaml beside train.yaml."""
    stem = out.stem.replace("train", "val") if "train" in out.stem else f"{out.stem}_val"
    return out.with_name(f"{stem}{out.suffix}")


def _compare(part: str, parts: dict[str, Detected], surveys: dict[str, Survey]) -> list[str]:
    """Return what is not certain about training and validation data together."""
    from gpupipe.init.detect import TRAIN, VAL

    if len(parts) == 1:
        rule = "for a tenth of this data write 'split: {train: 0.9, val: 0.1}' and 'subset: train'"
        return [f"no validation data was found; {rule} under loader."]
    if list(surveys[TRAIN].classes) == list(surveys[VAL].classes):
        return []
    other = VAL if part == TRAIN else TRAIN
    return [f"the {other} data has other classes, so class numbers differ between the two."]
