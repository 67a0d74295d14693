"""Every code block of the docs: Python and bash run, YAML and commands are checked."""

import contextlib
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import click
import jsonschema
import numpy as np
import pytest

from gpupipe import config as configs
from gpupipe.cli.app import main
from gpupipe.config.json_schema import make_schema
from gpupipe.errors import DataError
from gpupipe.schema import yaml_files
from helpers import forked_python
from helpers.code_blocks import Block, read_blocks, write_blocks
from helpers.full_product import IS_FULL

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {str(page.relative_to(ROOT)): read_blocks(page) for page in PAGES}
TESTED_ELSEWHERE = {"docs/plugins.md", "docs/howto/engine_plugin.md"}
"""tests/test_plugin_docs.py installs the package of the page, and loads its config."""
SLOW = set() if IS_FULL else {"docs/tutorials/coco.md"}
"""Pages that train a model: GPUPIPE_TEST_ALL=1 runs them."""

RUN = [
    name
    for name, blocks in BLOCKS.items()
    if name not in TESTED_ELSEWHERE | SLOW
    and any(b.language in ("python", "bash") and not b.not_run for b in blocks)
]
YAML = [
    pytest.param(block, id=f"{name}:{block.line}")
    for name, blocks in BLOCKS.items()
    for block in blocks
    if block.language == "yaml" and name not in TESTED_ELSEWHERE
]
COMMANDS = sorted(
    {
        (f"{page.relative_to(ROOT)}", " ".join(match[1].replace("\\\n", " ").split()))
        for page in PAGES
        for match in re.finditer(
            r"^(?:    |\$ )(gpupipe (?:\\\n|[^\n#`])+)", page.read_text(), re.M
        )
    }
)


@pytest.fixture
def folder(faces: Path, tmp_path: Path) -> Path:
    """Where a page runs: with `photos`, in class folders, and with the scripts of examples/."""
    (tmp_path / "photos").symlink_to(faces)
    (tmp_path / "data" / "imagenet").mkdir(parents=True)
    (tmp_path / "data" / "lfw").symlink_to(faces)
    for part, count in (("train", 9), ("val", 5)):
        (tmp_path / "data" / "imagenet" / part).mkdir()
        for classes in sorted(faces.iterdir())[:count]:
            (tmp_path / "data" / "imagenet" / part / classes.name).symlink_to(classes)
    for name in ("examples", "configs", "pipelines"):
        shutil.copytree(ROOT / name, tmp_path / name)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, words in {
        "gpupipe": "-m gpupipe",
        "python": "",
        "torchrun": "-m torch.distributed.run",
    }.items():
        (commands / name).write_text(f'#!/bin/sh\nexec {forked_python.executable()} {words} "$@"\n')
        (commands / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("name", RUN)
def test_the_blocks_of_a_page_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_blocks(BLOCKS[name], folder / "blocks.json")
    monkeypatch.setenv("GPUPIPE_DATA", str(folder / "data"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    script = ROOT / "tests" / "helpers" / "code_blocks.py"
    done = forked_python.run(["-W", "ignore", str(script), "blocks.json"], cwd=folder)
    assert done.returncode == 0, f"{name}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(make_schema("config"))


@pytest.mark.parametrize("block", YAML)
def test_a_block_of_yaml_is_a_config_or_a_part_of_one(
    block: Block,
    schema: jsonschema.Draft7Validator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("zca.npy", np.eye(3072, dtype=np.float32))
    np.save("mean.npy", np.zeros(3072, np.float32))
    Path("my_steps.py").write_text("def stamp(image, strength):\n    return image\n")
    monkeypatch.syspath_prepend(tmp_path)
    # A block may have several examples of one key.
    for text in re.split(r"^(?=data:)", block.code, flags=re.M):
        content = yaml_files.parse(text, f"line {block.line}").data
        if not content:
            continue
        config = complete(content)
        assert list(schema.iter_errors(config)) == []
        if "pipeline" in content or isinstance(content, list):
            with contextlib.suppress(DataError):  # of files that are not here
                configs.read(config)


def complete(content: Any) -> dict[str, Any]:
    """Return a config that holds a part of one, such as a list of steps."""
    if isinstance(content, list):
        decoded = [] if first_name(content) == "decode" else ["decode"]
        if first_name(content[1:]) == "linear_transformation":
            floats = {"to_dtype": {"dtype": "float32", "scale": True}}
            content = [content[0], floats, *content[1:]]
        content = {"pipeline": [*decoded, *content]}
    assert set(content) <= {"data", "pipeline", "batch", "loader"}, "no part of a config"
    return {"data": {"source": "folder", "root": "photos"}, "pipeline": ["decode"]} | content


def first_name(steps: list[Any]) -> str:
    first = steps[0] if steps else ""
    return first if isinstance(first, str) else next(iter(first))


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_has_its_arguments_and_options(page: str, line: str) -> None:
    words = shlex.split(line.partition(" > ")[0])[1:]
    command: click.Command = main
    context = click.Context(main, info_name="gpupipe")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, found, words = command.resolve_command(context, words)
        assert found is not None, name
        context, command = click.Context(found, info_name=name, parent=context), found
    parser = command.make_parser(context)
    parser.parse_args(args=list(words))  # an unknown option is an error


def test_blocks_that_do_not_run_are_few() -> None:
    reasons = [b.not_run for blocks in BLOCKS.values() for b in blocks if b.not_run]
    assert len(reasons) <= 4, reasons
