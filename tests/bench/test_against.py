"""`gpupipe compare --against`: a loader of the user's as a contestant."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from gpupipe.bench import against
from gpupipe.bench.against import count_images
from gpupipe.bench.compare import compare
from gpupipe.bench.comparison import Comparison, Contestant, Result, describe_verdict
from gpupipe.bench.contestant import Contest
from gpupipe.cli.app import main
from gpupipe.errors import EngineError
from helpers.made_comparison import measured

MODULE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def make_loader():
    return DataLoader(TensorDataset(torch.zeros(20, 3, 4, 4), torch.zeros(20)), 8, num_workers=1)

def make_generator():
    return (torch.zeros(8, 3, 4, 4) for _ in range(20))

def make_number():
    return 5

def fail():
    raise ValueError("no such folder")

class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, n):
        raise KeyError("no such label")

def make_broken():
    return DataLoader(Broken(), 4, num_workers=1)
"""


CORES = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def contest(tmp_path_factory: pytest.TempPathFactory) -> Contest:
    """A contest of a config beside the module."""
    folder = tmp_path_factory.mktemp("against")
    (folder / "my_loader_of_tests.py").write_text(MODULE)
    config = folder / "c.json"
    config.write_text(json.dumps({"data": {"source": "folder", "root": "."}}))
    return Contest(str(config), (), {}, CORES[:1], 4, 2, False)


def run(contest: Contest, function: str) -> Comparison:
    path = f"my_loader_of_tests:{function}"
    return compare([Contestant(path, {}, against=path)], contest, 1, lambda *done: None)


def test_a_dataloader_is_measured_as_the_engines_are(contest: Contest) -> None:
    comparison = run(contest, "make_loader")
    (outcome,) = comparison.results[0].outcomes
    assert (outcome.batches, outcome.batches_ahead) == (4, 2)
    assert 24 <= outcome.images <= 32  # the last batch of an epoch has 4
    assert outcome.parallelism_with_unit == "1 workers"
    assert outcome.peak_memory > 50e6
    assert outcome.cpu_seconds > 0
    assert outcome.first_batch_seconds > 0
    assert any("pixels are not compared" in note for note in comparison.notes)
    assert comparison.as_json()["sides"][0]["against"] == "my_loader_of_tests:make_loader"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("make_generator", "no batch in epoch 2"),
        ("make_number", "no iterable"),
        ("missing", "has no 'missing'"),
    ],
)
def test_what_is_no_loader_is_named(contest: Contest, function: str, message: str) -> None:
    own = replace(contest, against=f"my_loader_of_tests:{function}", cores=CORES, batches=30)
    with pytest.raises(EngineError, match=message) as caught:
        against.run(own)
    assert "my_loader_of_tests" in str(caught.value)


def test_an_exception_of_the_function_is_one_line_with_its_own(contest: Contest) -> None:
    with pytest.raises(EngineError) as caught:
        run(contest, "fail")
    line = r"my_loader_of_tests:fail: raised ValueError: no such folder at .*_of_tests\.py:15"
    assert re.fullmatch(line, str(caught.value))


def test_an_exception_in_a_worker_is_one_line_with_that_of_the_data_set(contest: Contest) -> None:
    own = replace(contest, against="my_loader_of_tests:make_broken", cores=CORES)
    with pytest.raises(EngineError) as caught:
        against.run(own)
    line = r"raised KeyError: 'no such label' at .*my_loader_of_tests\.py:22"
    assert re.fullmatch(line, str(caught.value))


def test_the_command_looks_for_the_function_before_all_else(
    contest: Contest,
) -> None:
    """The root has no images, which would be refused later."""
    own = ["data.root=none", "--against", "my_loader_of_tests:make_loadr"]
    done = CliRunner().invoke(main, ["compare", contest.config, *own])
    assert done.exit_code == 1
    assert "has no 'make_loadr'; did you mean 'make_loader'?" in done.output


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(4, 3, 2, 2),
        np.zeros((4, 2)),
        (torch.zeros(4, 5), torch.zeros(4)),
        [torch.zeros(4, 3, 2, 2), torch.zeros(4)],
        {"image": torch.zeros(4, 3, 2, 2), "label": torch.zeros(4)},
        ([torch.zeros(3, 2, n) for n in range(4)], [{}] * 4),
        [{"data": torch.zeros(4, 2, 2, 3)}],
        ["a", "b", "c", "d"],
    ],
)
def test_images_of_a_batch_of_any_format_are_counted(batch: object) -> None:
    assert count_images(batch) == 4


def test_ratios_are_to_the_users_loader() -> None:
    comparison = measured({"DALI on CPU": [300.0, 303.0], "DataLoader, 2 workers": [200.0, 201.0]})
    outcomes = measured({"mine": [100.0, 101.0]}).results[0].outcomes
    comparison.results.append(Result(Contestant("mine", {}, against="my:loader"), outcomes))
    assert comparison.baseline is comparison.results[-1]
    assert (
        "DALI on CPU delivers 3.00 times as many images as mine" in describe_verdict(comparison)[0]
    )
