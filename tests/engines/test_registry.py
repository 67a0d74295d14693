"""Finding engines by name, an engine of another package, and who may know the name of an engine."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.engines import registry
from gpupipe.errors import EngineError
from gpupipe.loading.assembly import connect, resolve
from gpupipe.runtime.devices import gpu_count
from gpupipe.runtime.registry import ENGINES, list_by_priority
from helpers import forked_python
from helpers.plugin import install

PACKAGE = Path(gpupipe.__file__).parent
CONFIG = {"data": {"source": "folder", "root": "/x"}, "pipeline": ["decode"]}
MODULE = """
import torch
from gpupipe.engines.base import Engine
from gpupipe.engines.batch import labels_and_values

class Grey(Engine):
    name = "grey"
    settings = frozenset({"batch_size", "shuffle", "seed", "last_batch"})

    def __init__(self, job):
        self.device, self._job = "cpu", job

    @classmethod
    def on(cls, job, device):
        return cls(job)

    def batches(self, plans):
        for plan in plans:
            image = torch.full((len(plan.ids), 3, 4, 4), 128, dtype=torch.uint8)
            values = labels_and_values(self._job.index, plan, torch.device("cpu"))
            yield plan, {"image": image} | values

    def close(self):
        pass

class NoEngine:
    pass
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed package that has two engines; the second is broken."""
    folder = tmp_path_factory.mktemp("site")
    return install(folder, "grey_engine", MODULE, engine_grey="Grey", engine_broken="NoEngine")


def run_python(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return forked_python.run(command, env=os.environ | {"PYTHONPATH": str(site)}, cwd=site)


def test_the_engine_of_a_plugin_loads_batches(site: Path, faces: Path) -> None:
    code = f"""
import gpupipe
config = {{"data": {{"source": "folder", "root": {str(faces)!r}}}, "pipeline": ["decode"]}}
with gpupipe.load(config, engine="grey", batch_size=4) as loader:
    samples = sum(len(batch["label"]) for batch in loader)
    print(samples == len(loader.index), loader.engine.traits.parallelism_with_unit)
for name in ("grei", "broken"):
    try:
        gpupipe.load(config, engine=name)
    except gpupipe.GpupipeError as e:
        print(type(e).__name__, e)
"""
    done = run_python(site, "-c", code)
    assert done.returncode == 0, done.stderr
    first, unknown, broken = done.stdout.splitlines()
    assert first == "True 1 thread"
    assert "'dataloader', 'grey', 'ray' or 'remote'; did you mean 'grey'?" in unknown
    assert "EngineError the engine 'broken' of the package grey_engine 1.0" in broken
    assert "must derive from gpupipe.engines.base.Engine" in broken


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["run", "--batches", "40", "--repeats", "1"], "grey on cpu, 1 thread"),
        (["check"], "batch: image uint8"),
        (
            ["profile", "--repeats", "1", "--repeat-seconds", "0.02"],
            "Engine grey cannot read alone",
        ),
        (["compare", "--batches", "20", "--repeats", "1", "--cpu-workers", "0"], "grey "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_run_the_engine_of_a_plugin(
    site: Path, faces: Path, command: list[str], said: str
) -> None:
    (site / "config.yaml").write_text(
        f"data: {{source: folder, root: {faces}}}\npipeline: [decode]"
    )
    name, *options = command
    settings = ["engine=grey", "batch_size=4", "device=cpu"]
    done = run_python(site, "-m", "gpupipe", name, "config.yaml", *settings, *options)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout + done.stderr


def test_every_built_in_engine_is_registered_with_a_class_of_its_name() -> None:
    assert set(ENGINES.names()) >= {"cpu", "dali", "dataloader", "remote"}
    for name in ENGINES.names():
        assert registry.find(name).name == name


def test_auto_depends_on_the_device() -> None:
    assert list_by_priority("cpu") == ["cpu", "dali", "dataloader"]
    assert list_by_priority("gpu") == ["dali", "cpu", "dataloader"]
    assert registry.choose("auto", "cpu").name == "cpu"
    assert registry.choose("auto", "gpu:3").name == "dali"
    assert registry.choose("auto").name == ("dali" if gpu_count() else "cpu")
    assert registry.choose("dataloader", "gpu").name == "dataloader"
    assert resolve(configs.read(CONFIG, device="cpu")).engine.name == "cpu"


def test_auto_takes_an_engine_that_runs_all_steps(faces: Path) -> None:
    steps = ["decode", {"random_apply": {"transforms": [{"dali": {"op": "water"}}]}}]
    written = {"data": {"source": "folder", "root": faces}, "pipeline": steps}
    with gpupipe.load(written, device="cpu") as loader:
        assert loader.engine.name == "dali"
    with pytest.raises(EngineError, match=r"pipeline\.1: .*engine: dali"):
        gpupipe.load(written, engine="cpu", device="cpu")


TORCH_ALONE = """
from gpupipe.pipeline.step import Step
from gpupipe.loading.assembly import resolve

class Brighten(Step):
    def infer_spec(self, input_spec):
        return input_spec

    def torch(self, image, p):
        return image + 1
"""


def test_auto_never_takes_an_engine_that_refuses(
    tmp_path: Path, faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DALI, which a GPU prefers, has no operator for a step that is written in torch alone."""
    site = install(tmp_path, "torch_alone", TORCH_ALONE, brighten="Brighten")
    monkeypatch.syspath_prepend(str(site))
    written = {"data": {"source": "folder", "root": faces}, "pipeline": ["decode", "brighten"]}
    assert resolve(configs.read(written, device="gpu")).engine.name == "cpu"
    assert resolve(configs.read(CONFIG, device="gpu")).engine.name == "dali"
    with pytest.raises(EngineError, match=r"pipeline\.1: .*cannot run on DALI on the CPU"):
        gpupipe.load(written, engine="dali", device="cpu")
    with gpupipe.load(written, device="cpu", batch_size=4) as loader:
        assert len(next(iter(loader))["label"]) == 4
    nested = [{"random_apply": {"transforms": ["brighten"]}}]
    for steps, able in (([*nested], False), (["random_horizontal_flip"], True)):
        pipeline = configs.read(written, pipeline=["decode", *steps]).pipeline
        dali = registry.find_reader("dali")
        assert dali.can_run(pipeline.entries[0], "gpu")
        assert dali.can_run(pipeline.entries[1], "gpu") == able


def test_auto_passes_over_engines_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = configs.read(CONFIG, device="gpu")
    assert registry.list_passed_over(on_gpu, "dali") == []
    for module in [name for name in sys.modules if name.startswith("gpupipe.engines.dali.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    assert resolve(on_gpu).engine.name == "cpu", "it copies the batches to the GPU"
    assert registry.list_passed_over(on_gpu, "cpu") == ["DALI"]
    assert registry.list_passed_over(configs.read(CONFIG, device="cpu"), "cpu") == []
    assert registry.list_passed_over(configs.read(CONFIG, device="gpu", engine="cpu"), "cpu") == []


def test_a_name_that_is_no_engine_is_refused() -> None:
    with pytest.raises(gpupipe.ConfigError, match=r"'dali', 'dataloader'.*did you mean 'dali'\?"):
        configs.read(CONFIG, engine="dalli")
    with pytest.raises(EngineError, match="unknown engine 'dalli'; did you mean 'dali'"):
        registry.find("dalli")


def test_a_setting_that_an_engine_requires_is_asked_for() -> None:
    with pytest.raises(gpupipe.ConfigError, match="no server is named"):
        configs.read(CONFIG, engine="remote")


def test_an_engine_that_reads_the_data_has_no_server() -> None:
    with pytest.raises(EngineError, match="engine dataloader reads the data itself, and has no"):
        connect(registry.find("dataloader"), configs.read(CONFIG).loader)


def _mentions(tree: ast.AST, names: set[str]) -> list[int]:
    """Return the lines that compare with, or set `engine` to, one of these names."""
    lines = []
    for node in ast.walk(tree):
        constants: list[ast.AST] = []
        is_engine = isinstance(node, ast.keyword) and node.arg == "engine"
        if isinstance(node, ast.Compare):
            constants = [n for side in (node.left, *node.comparators) for n in ast.walk(side)]
        elif isinstance(node, ast.MatchValue) or is_engine:
            constants = [node.value]
        elif isinstance(node, ast.Dict):
            constants = [
                value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and key.value == "engine"
            ]
        lines += [n.lineno for n in constants if isinstance(n, ast.Constant) and n.value in names]
    return lines


def test_no_generic_module_knows_an_engine_by_name() -> None:
    names = {"dali", "dataloader", "remote"}  # "cpu" is a device, too
    # connect() is the remote engine's own function.
    own = {PACKAGE / "remote_loader.py", *PACKAGE.glob("engines/*/**/*.py")}
    found = {
        str(file.relative_to(PACKAGE)): lines
        for file in sorted({*PACKAGE.rglob("*.py")} - own)
        if (lines := _mentions(ast.parse(file.read_text()), names))
    }
    assert found == {}
    assert _mentions(ast.parse("x.name == 'dali'; f(engine='remote'); {'engine': 'dali'}"), names)
