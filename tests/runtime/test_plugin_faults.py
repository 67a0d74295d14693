"""Steps and sources of other packages that are broken: they are named, and never a sample."""

import os
import subprocess
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import gpupipe
from helpers import forked_python
from helpers.odd_steps import ENGINES, HEAD, Plugin, failure, installer, load
from helpers.plugin import install


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugin:
    return installer(tmp_path, monkeypatch)


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_a_step_that_is_as_it_should_be(
    plugin: Plugin, faces: Path, options: dict[str, Any]
) -> None:
    with load(faces, plugin(), **options) as loader:
        assert sum(len(b["label"]) for b in loader) == 60


# --- what cannot be imported, or is no step


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import nowhere",
            "cannot be imported from broken:Odd (ModuleNotFoundError: No module nam",
        ),
        ("1 / 0", "cannot be imported from broken:Odd (ZeroDivisionError: division by zero): rep"),
        ("", "cannot be imported from broken:Odd (AttributeError: "),
        (
            "def Odd(): ...",
            "broken:Odd, is a function: it must derive from gpupipe.pipeline.step.Step",
        ),
        (
            "class Odd: ...",
            "broken:Odd, is a class that is no Step: it must derive from gpupipe.pipeline.step.",
        ),
    ],
)
def test_a_broken_entry_point_is_one_line(
    tmp_path: Path, faces: Path, code: str, said: str
) -> None:
    install(tmp_path, "broken", code, odd="Odd")
    (tmp_path / "c.yaml").write_text(
        f"data: {{source: folder, root: {faces}}}\npipeline: [decode, odd]\n"
    )
    done = command(tmp_path, "check", "c.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    head, line, *_ = done.stderr.splitlines()
    assert head == "error: 1 mistake in the configuration"
    assert line.startswith("c.yaml:2:20: the step 'odd' of the package broken 1.0")
    assert said in line


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import nowhere", "cannot be imported from broken:Odd (ModuleNotFoundError"),
        ("class Odd: ...", "is a class that is no Source"),
        (HEAD + "class Odd(Source): ...", "does not define index, which each Source must"),
    ],
)
def test_a_broken_source_is_one_line(tmp_path: Path, code: str, said: str) -> None:
    install(tmp_path, "broken", code, source_odd="Odd")
    (tmp_path / "c.yaml").write_text("data: {source: odd}\npipeline: [decode]\n")
    done = command(tmp_path, "check", "c.yaml")
    assert done.returncode == 2
    _, line, *_ = done.stderr.splitlines()
    assert line.startswith("c.yaml:1:16: the source 'odd' of the package broken 1.0")
    assert said in line


def test_what_is_broken_and_not_used_is_no_matter(tmp_path: Path, faces: Path) -> None:
    install(tmp_path, "broken", "1 / 0", odd="Odd")
    (tmp_path / "c.yaml").write_text(
        f"data: {{source: folder, root: {faces}}}\npipeline: [decode]\n"
    )
    assert command(tmp_path, "check", "c.yaml").returncode == 0


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return forked_python.run(["-m", "gpupipe", *words], cwd=folder, env=environment)


# --- exceptions in a step's code


RAISES = "raise {}('mine, not the file')"
ERRORS = ["ValueError", "RuntimeError", "OSError", "TypeError", "KeyError"]


@pytest.mark.parametrize("options", ENGINES, ids=str)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_exception_in_sample(
    plugin: Plugin, faces: Path, options: dict[str, Any], error: str, on_error: str
) -> None:
    name = plugin(sample=f"    def sample(self, u):\n        {RAISES.format(error)}")
    said = failure(faces, name, **options, on_error=on_error)
    assert f"its sample() raised {error}: " in str(said)
    assert "mine, not the file" in said.traceback
    assert f'{name}.py", line' in said.traceback
    assert not active_children(), "though the traceback keeps torch's iterator alive"


@pytest.mark.parametrize("options", ENGINES[1:], ids=str)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_exception_in_torch(
    plugin: Plugin, faces: Path, options: dict[str, Any], error: str, on_error: str
) -> None:
    name = plugin(torch=f"    def torch(self, image, p):\n        {RAISES.format(error)}")
    said = failure(faces, name, **options, on_error=on_error)
    assert f"its torch() raised {error}: " in str(said)
    assert f'{name}.py", line' in said.traceback
    assert "mine, not the file" in str(said.__cause__), "which Python prints above it"


@pytest.mark.parametrize("error", ERRORS)
def test_an_exception_in_dali(plugin: Plugin, faces: Path, error: str) -> None:
    name = plugin(lower=f"    def lower(self, image, p):\n        {RAISES.format(error)}")
    said = failure(faces, name, engine="dali")
    assert f"its lower() raised {error}: " in str(said)
    assert f'{name}.py", line' in said.traceback


def test_an_exception_in_an_operator_that_a_step_applies(plugin: Plugin, faces: Path) -> None:
    """It is raised while the graph is built."""
    name = plugin(
        lower="    def lower(self, image, p):\n        image.apply('odd', self.make)",
        make=f"    def make(self, pixels):\n        {RAISES.format('TypeError')}",
    )
    said = failure(faces, name, engine="dali")
    assert "its lower() raised TypeError: " in str(said)
    assert f'{name}.py", line' in said.traceback


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("pad([1, 1], [1, 1], 'wrap')", "KeyError: 'wrap'"),
        ("erase([0, 0], [1, 1], ('red',))", "ValueError: "),
    ],
)
def test_an_argument_that_no_operator_accepts(
    plugin: Plugin, faces: Path, call: str, error: str
) -> None:
    """Its operator is made while the graph is built."""
    name = plugin(lower=f"    def lower(self, image, p):\n        image.{call}")
    said = failure(faces, name, engine="dali")
    assert f"its lower() raised {error}" in str(said)


def test_an_interpolation_that_does_not_exist(plugin: Plugin, faces: Path) -> None:
    call = "warp(np.eye(2), [0, 0], [0, 0], 'lanczos', None)"
    name = plugin(lower=f"    def lower(self, image, p):\n        image.{call}")
    with pytest.raises(gpupipe.EngineError, match="there is no interpolation 'lanczos'"):
        load(faces, name, engine="dali")


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_exception_in_a_later_batch(
    plugin: Plugin, tmp_path: Path, error: str, on_error: str
) -> None:
    """In `lower`, on values of the fourth batch: what comes before is delivered."""
    name = plugin(
        lower="    def lower(self, image, p):\n        if (image.size == 100).any():\n            "
        f"{RAISES.format(error)}",
    )
    root = tmp_path / "images"
    (root / "one").mkdir(parents=True)
    files = [root / "one" / f"{n:02}.png" for n in range(20)]
    for n, file in enumerate(files):
        Image.new("RGB", (50, 100 if n == 12 else 50)).save(file)
    with load(root, name, engine="dali", on_error=on_error, prefetch=1) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        with pytest.raises(gpupipe.StepError, match=rf"its lower\(\) raised {error}"):
            next(batches)
        Image.new("RGB", (50, 50)).save(files[12])
        assert len(list(loader)) == 5, "and the loader goes on when it is asked again"


@pytest.mark.parametrize("call", ["infer_spec", "resolve"])
def test_an_exception_in_spec(plugin: Plugin, faces: Path, call: str) -> None:
    name = plugin(**{call: f"    def {call}(self, given):\n        {RAISES.format('KeyError')}"})
    said = failure(faces, name)
    assert "its infer_spec() raised KeyError: 'mine, not the file'" in str(said)
    assert f'{name}.py", line' in said.traceback


def test_a_spec_that_is_none(plugin: Plugin, faces: Path) -> None:
    said = failure(faces, plugin(infer_spec="    def infer_spec(self, given):\n        pass"))
    assert "its infer_spec() raised TypeError: it must return a Spec, and not empty" in str(said)


def test_a_sample_may_be_refused(plugin: Plugin, faces: Path) -> None:
    """What a step says of one sample costs that sample, in both engines."""
    refuse = "raise SampleIncompatibleError('too dark')"
    torch = (
        "    def torch(self, image, p):\n        if p['strength'][0] < 0.2:\n            "
        f"{refuse}\n        return image"
    )
    lower = (
        "    def lower(self, image, p):\n        if (p['strength'] < 0.2).any():\n            "
        f"{refuse}\n        image.apply('same', lambda pixels: pixels)"
    )
    name, kept = plugin(torch=torch, lower=lower), []
    for options in ENGINES[:2]:
        with load(faces, name, **options, on_error="skip", max_bad=0.5, ids=True) as loader:
            kept.append([i for b in loader for i in b["id"].tolist()])
            assert 0 < len(loader.engine.quarantine) < 30
            assert "too dark" in loader.engine.quarantine.file.read_text()
        refused = pytest.raises(gpupipe.SampleError, match="too dark")
        with load(faces, name, **options) as loader, refused:
            list(loader)
        loader.engine.quarantine.file.unlink()
    assert kept[0] == kept[1]


def test_a_step_may_refuse_the_first_sample(plugin: Plugin, faces: Path) -> None:
    """The graph is built from a sample that is not refused."""
    lower = (
        "    def lower(self, image, p):\n        if (p['strength'] < 0.9).any():\n"
        "            raise SampleIncompatibleError('too dark')\n"
        "        image.apply('same', lambda pixels: pixels)"
    )
    name = plugin(lower=lower)
    for seed in range(8):
        load(faces, name, **ENGINES[0], seed=seed).close()


def test_a_step_that_refuses_every_sample_is_an_error(plugin: Plugin, faces: Path) -> None:
    name = plugin(
        lower="    def lower(self, image, p):\n        raise SampleIncompatibleError('too dark')"
    )
    with pytest.raises(
        gpupipe.EngineError, match=r"a step refuses each of 1,000 samples.*too dark"
    ):
        load(faces, name, **ENGINES[0])


def test_a_command_prints_the_traceback_and_one_line(
    tmp_path: Path, faces: Path, plugin: Plugin
) -> None:
    name = plugin(torch=f"    def torch(self, image, p):\n        {RAISES.format('ValueError')}")
    (tmp_path / "c.yaml").write_text(
        f"data: {{source: folder, root: {faces}}}\npipeline: [decode, {name}]\n"
    )
    done = command(tmp_path, "run", "c.yaml", "engine=dataloader", "workers=1")
    assert done.returncode == 1
    *above, line = done.stderr.splitlines()
    assert line.startswith(f"error: c.yaml:2:20: step '{name}' ({name} 1.0, ")
    assert f"its torch() raised ValueError: mine, not the file; the sample is {faces}" in line
    assert "ValueError: mine, not the file" in above
    assert len([text for text in above if text.startswith("Traceback")]) == 1
