"""Steps of the batch stage of other packages, found by entry points, in a process of their own."""

import os
from pathlib import Path

import pytest

from helpers import forked_python
from helpers.plugin import install

MODULE = '''
from gpupipe.batch_stage.batch_step import BatchStep


class Reverse(BatchStep):
    """The samples in reverse order, without their labels."""

    def torch(self, images, labels, p):
        return {name: image.flip(0) for name, image in images.items()}, labels


class Halves(BatchStep):
    """Drops half of the labels."""

    def torch(self, images, labels, p):
        return dict(images), labels[::2]


class Fails(BatchStep):
    def sample(self, u):
        raise KeyError("typo")
'''


@pytest.fixture
def site(tmp_path: Path) -> Path:
    steps = {"batch_reverse": "Reverse", "batch_halves": "Halves", "batch_fails": "Fails"}
    return install(tmp_path, "other_package", MODULE, **steps)


def python(site: Path, noise: Path, code: str) -> str:
    start = f"""
import gpupipe, torch
def load_with_steps(*steps):
    return gpupipe.load(
        {{"data": {{"source": "folder", "root": {str(noise)!r}}}, "pipeline": ["decode"]}},
        device="cpu", batch_size=4, batch=list(steps),
    )
"""
    done = forked_python.run(["-c", start + code], env=os.environ | {"PYTHONPATH": str(site)})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_step_of_a_plugin_runs(site: Path, noise: Path) -> None:
    code = """
with load_with_steps() as plain, load_with_steps("reverse") as mixed:
    a, b = next(iter(plain)), next(iter(mixed))
    print(torch.equal(a["image"].flip(0), b["image"]), tuple(b["label"].shape))
"""
    assert python(site, noise, code) == "True (4, 3)"


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("halves", "step 'halves' (other_package 1.0, .*'label'"),
        ("fails", "step 'fails' .*sample() raised KeyError: 'typo'"),
    ],
)
def test_a_faulty_step_is_named_with_its_package(
    site: Path, noise: Path, step: str, words: str
) -> None:
    code = f"""
with load_with_steps({step!r}) as loader:
    try:
        next(iter(loader))
    except gpupipe.StepError as e:
        print(e)
"""
    said = python(site, noise, code)
    assert all(part in said for part in words.split(".*")), said


def test_plugins_are_suggested_for_a_typo(site: Path, noise: Path) -> None:
    code = """
try:
    load_with_steps("revrse")
except gpupipe.ConfigError as e:
    print(e)
"""
    assert "did you mean 'reverse'?" in python(site, noise, code)
