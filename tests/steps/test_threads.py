"""Every built-in step runs on several threads at once, as the contract Step demands."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe import config as configs
from gpupipe.dataset.index import build_empty
from gpupipe.engines.base import DrawnStep, Job
from gpupipe.errors import ConfigError
from gpupipe.pipeline.step import Step
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.sampling.sampler import Plan
from helpers.every_step import CASES, NEED_ANNOTATIONS, of_image, photograph

THREADS = 4
SAMPLES = 8
NO_SCALE = [{"to_dtype": {"dtype": name, "scale": True}} for name in ("uint32", "uint64", "bool")]
"""They are refused."""
CASES_WITH_DECODE: list[dict[str, Any]] = [
    {"decode": {}},
    {"decode": {"mode": "gray"}},
    *(case for case in CASES if case not in NO_SCALE),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return photograph(tmp_path_factory.mktemp("photograph"))


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Let threads take turns as often as they can, so that they meet inside of steps."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def draw(data: dict[str, Any], case: dict[str, Any]) -> list[DrawnStep]:
    """Return the steps up to a case, drawn for SAMPLES samples; pixels are uint8 if it takes them.

    Every step but `decode` gets pixels in which all samples differ in nothing but the draws.
    """
    if "decode" in case:
        written: list[list[Any]] = [[case]]
    else:
        written = [[*of_image(dtype, True, case), case] for dtype in ("uint8", "float32")]
    for steps in written:
        try:
            checked = configs.read({"data": data, "pipeline": steps})
            break
        except ConfigError as e:
            refusal = e
    else:
        raise refusal
    job = Job(build_empty(), checked.pipeline, checked.loader, 1)
    return job.steps_for(Plan(0, np.arange(SAMPLES), SAMPLES, True))["image"]


def run(step: DrawnStep, image: torch.Tensor, n: int) -> torch.Tensor:
    result: torch.Tensor = step.entry.torch(image, {k: p[n] for k, p in step.parameters.items()})
    return result


def test_every_step_is_among_the_cases() -> None:
    cases = {name for case in CASES_WITH_DECODE for name in case}
    names = STEPS.builtin_names - NEED_ANNOTATIONS
    assert cases == {name for name in names if STEPS.find(name).torch is not Step.torch}


@pytest.mark.parametrize("case", CASES_WITH_DECODE, ids=str)
@pytest.mark.usefixtures("eager_switching")
def test_a_step_makes_on_threads_what_it_makes_on_one(
    data: dict[str, Any], case: dict[str, Any]
) -> None:
    *before, step = draw(data, case)
    (file,) = Path(data["root"]).glob("*/*.png")
    image = torch.from_numpy(np.fromfile(file, np.uint8))
    for earlier in before:
        image = run(earlier, image, 0)
    kept = image.clone()
    barrier = Barrier(THREADS)

    def run_all(first: int) -> list[torch.Tensor]:
        barrier.wait()
        return [run(step, image, (first + n) % SAMPLES) for n in range(SAMPLES)]

    with ThreadPoolExecutor(THREADS) as pool:
        on_threads = list(pool.map(run_all, range(THREADS)))
    alone = [run(step, kept, n) for n in range(SAMPLES)]
    for first, results in enumerate(on_threads):
        for n, result in enumerate(results):
            assert torch.equal(result, alone[(first + n) % SAMPLES])
    assert torch.equal(image, kept), "the input belongs to the engine"
