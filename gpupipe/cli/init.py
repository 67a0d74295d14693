"""The commands `gpupipe init`, which writes a config for a folder of data, and `gpupipe schema`,
which prints JSON Schemas of configs and pipelines, for editors.
"""

import csv
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from gpupipe.cli.arguments import options, writing
from gpupipe.cli.console import Screen
from gpupipe.cli.printing import announce, say
from gpupipe.errors import GpupipeError, counted

if TYPE_CHECKING:
    from gpupipe.init.detected import Detected
    from gpupipe.init.survey import Survey

SCHEMAS = "schemas"
"""The default folder of JSON Schemas, in the working directory beside `configs` and `pipelines`."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@options
def init(
    folder: Path,
    out: Annotated[
        Path,
        click.Path(dir_okay=False, path_type=Path),
        "The config to write; the one for validation data is called val.yaml beside it.",
    ] = Path("train.yaml"),
    force: Annotated[bool, "Replace files that are there already."] = False,
) -> None:
    """Look at FOLDER, and write a config that reads it: class folders, images with masks, a list of
    files, COCO, VOC, shards, .zip, LMDB, HDF5, Zarr, .npy and .npz. Validation data gets a config
    of its own. What is not certain, and what is not read, is printed and stands in the config.
    """
    announce(f"reading {folder}")
    write_configs(folder, out, force)
    say(f"Try it: gpupipe run {out}")


def write_configs(folder: Path, out: Path, force: bool) -> None:
    """Write a config for a folder of data, and one for its validation data; print what was found.

    Args:
        folder: The folder of the data.
        out: The config to write; that for validation data is called val.yaml beside it.
        force: Whether to replace files.

    Raises:
        GpupipeError: If there is no data, if a file is there already, or if one cannot be written.
    """
    from gpupipe.init.detect import detect
    from gpupipe.init.detected import TRAIN, VAL
    from gpupipe.init.survey import iter_doubts, survey

    paths = {TRAIN: out, VAL: _val_path(out)}
    lists = {part: path.with_name(f"{path.stem}_list.csv") for part, path in paths.items()}
    parts = detect(folder, {path.absolute() for path in (*paths.values(), *lists.values())})
    written = {part: lists[part] for part, detected in parts.items() if detected.table}
    for path in (*(paths[part] for part in parts), *written.values()):
        if path.exists() and not force:
            raise GpupipeError(f"{path} is there already: take another --out, or --force")
    for part, path in written.items():
        parts[part] = _write_list(parts[part], path)
    try:
        with Screen(False) as screen:
            surveys = {part: survey(d, screen.progress) for part, d in parts.items()}
    except GpupipeError:
        for path in written.values():
            path.unlink()
        raise
    printed: set[str] = set()
    for part, detected in parts.items():
        doubts = [*iter_doubts(part, detected, surveys[part]), *_compare(part, parts, surveys)]
        _write_config(paths[part], part, folder, detected, surveys[part], doubts)
        _print(paths[part], detected, surveys[part], [d for d in doubts if d not in printed])
        printed.update(doubts)


def _write_list(detected: "Detected", path: Path) -> "Detected":
    """Write `detected.table` as CSV; return `detected` with the path in its options."""
    assert detected.table is not None
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(detected.table)
            writer.writerows(zip(*detected.table.values(), strict=True))
    return replace(detected, options={"file": str(path)} | detected.options)


def _write_config(
    path: Path, part: str, folder: Path, detected: "Detected", survey: "Survey", doubts: list[str]
) -> None:
    from gpupipe import config as configs
    from gpupipe.init.config_text import write_text

    installed = Path(SCHEMAS) / "config.json"
    # An editor reports a schema that is not there as an error of the file.
    schema = os.path.relpath(installed, path.parent) if installed.is_file() else ""
    text = write_text(part, str(folder), detected, survey, doubts, schema)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    configs.read(path)


def _print(path: Path, detected: "Detected", survey: "Survey", doubts: list[str]) -> None:
    from gpupipe.init.config_text import describe_samples

    say(f"{path}: source {detected.source}, {describe_samples(survey)}")
    if detected.table:
        say(f"  written for it: {detected.options['file']}")
    for doubt in doubts:
        say(f"  not certain: {doubt}")
    if survey.num_unreadable:
        few = counted(survey.num_unreadable, "image")
        how = "are left out (on_error: skip)"
        say(f"  {few} that cannot be read {how}: 'gpupipe inspect {path}' names them")
    if detected.unused:
        say(f"  not read: {detected.unused}")


def _val_path(out: Path) -> Path:
    """Return the path of the config for validation: val.yaml beside train.yaml."""
    stem = out.stem.replace("train", "val") if "train" in out.stem else f"{out.stem}_val"
    return out.with_name(f"{stem}{out.suffix}")


def _compare(part: str, parts: "dict[str, Detected]", surveys: "dict[str, Survey]") -> list[str]:
    """Return one warning if there is no validation data or class numbers differ, else none."""
    from gpupipe.init.detected import TRAIN, VAL

    if len(parts) == 1:
        size = surveys[part].count / max(1, len(surveys[part].used_labels))
        # A part takes whole samples of each class.
        share, train, val = ("tenth", 0.9, 0.1) if size >= 5 else ("third", 0.67, 0.33)
        split = f"'split: {{train: {train}, val: {val}}}' and 'subset: train' under loader"
        return [f"no validation data was found; for a {share} of this data write {split}."]
    train_classes, val_classes = (list(surveys[part].classes) for part in (TRAIN, VAL))
    shorter, longer = sorted((train_classes, val_classes), key=len)
    are_numbers = longer == [str(number) for number in range(len(longer))]
    if train_classes == val_classes or (are_numbers and longer[: len(shorter)] == shorter):
        return []
    other = VAL if part == TRAIN else TRAIN
    return [f"the {other} data has other classes, so class numbers differ between the two."]


@click.command()
@click.argument("kind", type=click.Choice(["config", "pipeline"]), default="config")
@options
def schema(
    kind: str,
    install: Annotated[
        bool, f"Write both schemas to {SCHEMAS}/, where configs/*.yaml and pipelines/*.yaml look."
    ] = False,
    out: Annotated[
        Path | None,
        click.Path(file_okay=False, path_type=Path),
        "Write both schemas to this folder.",
    ] = None,
) -> None:
    """Print the JSON Schema of a config, or of a pipeline file (KIND): an editor then completes and
    explains names, and marks mistakes. Steps and sources of installed plugins are in it.

    After 'gpupipe schema --install' an editor with yaml-language-server, such as VS Code, finds it
    by the first line of a file: "# yaml-language-server: $schema=../schemas/config.json".
    """
    announce("describing all steps and sources")
    from gpupipe.config.json_schema import KINDS, make_schema

    folder = out or (Path(SCHEMAS) if install else None)
    if folder is None:
        click.echo(
            json.dumps(make_schema("pipeline" if kind == "pipeline" else "config"), indent=2)
        )
        return
    for name in KINDS:
        path = folder / f"{name}.json"
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(make_schema(name), indent=1) + "\n", encoding="utf-8")
        click.echo(path)
