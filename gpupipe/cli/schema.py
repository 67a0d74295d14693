"""gpupipe schema: JSON Schemas of configs and pipelines, for editors."""

import json
from pathlib import Path
from typing import Annotated

import click

from gpupipe.cli.arguments import options
from gpupipe.cli.output_files import writing

FOLDER = "schemas"
"""The folder of the schemas: in the working directory, beside `configs` and `pipelines`."""


@click.command()
@click.argument("kind", type=click.Choice(["config", "pipeline"]), default="config")
@options
def schema(
    kind: str,
    install: Annotated[
        bool, f"Write both schemas to {FOLDER}/, where configs/*.yaml and pipelines/*.yaml look."
    ] = False,
    folder: Annotated[
        Path, click.Path(file_okay=False, path_type=Path), "Where --install writes them."
    ] = Path(FOLDER),
) -> None:
    """Print the JSON Schema of a config, or of a pipeline file (KIND): an editor then completes and
    explains names, and marks mistakes. Steps and sources of installed plugins are in it.

    After 'gpupipe schema --install' an editor with yaml-language-server, such as VS Code, finds it
    by the first line of a file: "# yaml-language-server: $schema=../schemas/config.json".
    """
    from gpupipe.config.json_schema import KINDS, make_schema

    if not install:
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
