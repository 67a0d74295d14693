"""gpupipe list and gpupipe show."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from gpupipe.cli.app import main
from gpupipe.cli.catalog import KINDS, OWN_PACKAGE, Item, list_items
from gpupipe.cli.listing import items_table
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.schema import yaml_files
from helpers.plugin import install

PLUGIN = '''\
from gpupipe.pipeline.step import Step


class Sparkle(Step):
    """Add sparkles. They glitter.

    Attributes:
        count: How many sparkles.
    """

    count: int = 3
'''


def run_gpupipe(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a step, and the entry point of another that is missing."""
    install(tmp_path, "sparkling", PLUGIN, sparkle="Sparkle", broken="Gone")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sparkling", raising=False)


def test_in_a_pipe_everything_has_one_line_each() -> None:
    done = run_gpupipe("list")
    assert done.exit_code == 0, done.output
    for kind in KINDS:
        assert f"{kind}s\n" in done.output.replace(" ", "")
    lines = done.output.splitlines()
    for name in (*yaml_files.names("configs"), *STEPS.builtin_names):
        assert any(line.split()[:1] == [name] and len(line.split()) > 3 for line in lines), name


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("kind", KINDS)
def test_summaries_are_whole_on_a_narrow_terminal(kind: str, width: int) -> None:
    long = Item("step", "a_name_of_thirty_characters_xx", "Long words. " * 20, OWN_PACKAGE)
    items = [*list_items(kind), long]
    out = io.StringIO()
    Console(width=width, file=out).print(items_table(kind, items))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    text = "".join(out.getvalue().split())  # where lines break does not matter here
    for item in items:
        assert item.name + "".join(item.summary.split()) in text


def test_one_kind_as_json() -> None:
    done = run_gpupipe("list", "steps", "--json", "-")
    assert done.exit_code == 0
    steps = json.loads(done.stdout)["steps"]
    assert {"name", "summary", "package"} == steps[0].keys()
    assert {step["name"] for step in steps} >= STEPS.builtin_names
    every = json.loads(run_gpupipe("list", "--json", "-").stdout)
    assert every.keys() == {f"{kind}s" for kind in KINDS}
    assert run_gpupipe("list", "step").output == run_gpupipe("list", "steps").output


@pytest.mark.usefixtures("plugin")
def test_plugins_are_listed_with_their_package_and_their_faults() -> None:
    items = {item.name: item for item in list_items("step")}
    assert items["sparkle"].summary == "Add sparkles."
    assert items["sparkle"].package == "sparkling 1.0"
    assert "cannot be imported from sparkling:Gone" in items["broken"].summary
    assert "sparkling 1.0" in run_gpupipe("list", "steps").output
    done = run_gpupipe("show", "sparkle")
    assert "of sparkling 1.0" in done.output
    assert "How many sparkles." in done.output
    done = run_gpupipe("show", "broken")
    assert done.exit_code == 1
    assert "the step 'broken' of the package sparkling 1.0 cannot be" in done.output


def test_a_file_is_shown_as_it_is() -> None:
    (path,) = yaml_files.folder("configs").glob("lfw.yaml")
    assert run_gpupipe("show", "lfw").output == path.read_text()


def test_a_name_of_two_kinds_shows_both_unless_one_is_chosen() -> None:
    both = run_gpupipe("show", "imagenet_train").output
    files = [
        (yaml_files.folder(kind) / "imagenet_train.yaml").read_text()
        for kind in ("configs", "pipelines")
    ]
    assert all(text in both for text in files)
    assert both.startswith("# config imagenet_train: ")
    assert run_gpupipe("show", "imagenet_train", "--kind", "pipeline").output == files[1]
    assert run_gpupipe("show", "imagenet_train", "--kind", "pipelines").output == files[1]


def test_a_step_is_shown_with_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    done = run_gpupipe("show", "random_affine")
    words = " ".join(done.output.split())
    assert "Each parameter is drawn uniformly from its range." in done.output
    for row in (
        "degrees number or [min, max] required The angle, clockwise:",
        "translate [width, height], each 0 to 1 none The largest shift",
        "interpolation nearest or bilinear nearest",
        "fill number or list of numbers, each 0 to 255 [0] The value outside",
    ):
        assert row in words
    assert "transforms list of steps required" in " ".join(
        run_gpupipe("show", "random_apply").output.split()
    )


def test_sources_and_loader_settings() -> None:
    words = " ".join(run_gpupipe("show", "folder").output.split())
    assert "root path required The folder;" in words
    done = run_gpupipe("show", "loader.batch_size")
    assert done.output.splitlines() == [
        "setting loader.batch_size",
        "type: whole number, 1 to 1,000,000",
        "default: 256",
        "Samples per batch on each rank, 1 to 1,000,000.",
    ]
    assert "world_size" in run_gpupipe("show", "loader.shard").output
    assert "default: 0" in run_gpupipe("show", "loader.shard.rank").output
    assert "prefetch" in run_gpupipe("show", "loader").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "lfww"], "there is no 'lfww': did you mean 'lfw'?"),
        (["show", "random_afine"], "did you mean 'random_affine'?"),
        (["show", "batch_size"], "did you mean 'loader.batch_size'?"),
        (["show", "zzzz"], "'gpupipe list' shows all names"),
        (
            ["show", "loader.bach_size"],
            "loader has no setting 'bach_size'; did you mean 'batch_size'?",
        ),
        (["show", "loader.seed.x"], "seed has no settings of its own"),
        (["show", "lfw", "--kind", "step"], "there is no 'lfw': 'gpupipe list' shows"),
        (["list", "stpes"], "did you mean 'steps'?"),
        (["list", "zzzz"], "known: configs, engines, pipelines, sources, steps"),
    ],
    ids=str,
)
def test_unknown_names_are_usage_mistakes(arguments: list[str], words: str) -> None:
    done = run_gpupipe(*arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_neither_torch_nor_dali_is_imported() -> None:
    code = """
import sys
from gpupipe.cli.app import main
for command in ("list", "show random_affine", "show dali"):
    main(command.split(), standalone_mode=False)
    imported = {"torch", "torchvision", "nvidia.dali"} & sys.modules.keys()
    assert not imported, f"{command} imports {imported}"
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
