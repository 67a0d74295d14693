import gc
import os
import pickle
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from gpupipe.pipeline.step import SampleIncompatibleError
from gpupipe.runtime.function_failures import CallFailedError
from gpupipe.runtime.function_pool import FunctionPool
from helpers import user_functions
from helpers.process_ends import ends

LIGHT = torch.arange(100, 244, dtype=torch.uint8).reshape(3, 6, 8)
DARK = torch.zeros(3, 6, 8, dtype=torch.uint8)
Open = Callable[..., FunctionPool]
pytestmark = pytest.mark.usefixtures("forked_in_module")


@pytest.fixture
def open_pool() -> Iterator[Open]:
    opened: list[FunctionPool] = []

    def open_(name: Any, count: int = 1, timeout: float = 60, **args: Any) -> FunctionPool:
        call = f"helpers.user_functions:{name}" if isinstance(name, str) else name
        opened.append(FunctionPool(call, args, None, count, timeout))
        return opened[-1]

    yield open_
    for pool in opened:
        pool.close()


def find_process(pool: FunctionPool) -> int:
    return int(pool.call(LIGHT, "image", 0)[0, 0, 0])


def test_the_function_runs_in_another_process_on_a_copy(open_pool: Open) -> None:
    pool = open_pool("stamp", strength=0.5)
    before = LIGHT.clone()
    first, again, other = (pool.call(LIGHT, "image", seed) for seed in (1, 1, 2**53 - 1))
    assert torch.equal(LIGHT, before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    expected = user_functions.stamp(LIGHT.clone(), torch.Generator().manual_seed(1))
    assert torch.equal(first, expected)


def test_the_seed_decides_draws_from_global_generators(open_pool: Open) -> None:
    two = open_pool("draws_of_all", count=2)
    drawn = [two.call(LIGHT, "image", seed) for seed in (5, 6)]
    assert not torch.equal(*drawn)
    with ThreadPoolExecutor(2) as threads:
        again = list(threads.map(lambda seed: two.call(LIGHT, "image", seed), [6, 5, 6, 5]))
    assert all(torch.equal(a, b) for a, b in zip(again, [*drawn[::-1], *drawn[::-1]], strict=True))


def test_all_processes_work_at_once_while_this_one_is_free(open_pool: Open) -> None:
    pool = open_pool("work", count=2)
    with ThreadPoolExecutor(4) as threads:
        made = threads.map(lambda seed: pool.call(LIGHT, "image", seed), range(8))
        processes = {int(image[0, 0, 0]) for image in made}
    assert len(processes) == 2


def test_a_function_that_keeps_its_image_changes_no_other(open_pool: Open) -> None:
    pool = open_pool("keep")
    first = pool.call(LIGHT, "image", 0)
    pool.call(DARK, "image", 0)
    assert torch.equal(first, LIGHT[:, 1:])


def test_a_class_is_constructed_in_the_process(open_pool: Open) -> None:
    before = user_functions.Divide.constructed
    assert torch.equal(open_pool("Divide", by=2).call(LIGHT, "left", 0), LIGHT // 2)
    assert user_functions.Divide.constructed == before


@pytest.fixture(scope="module")
def misbehaving(forked_in_module: None) -> Iterator[FunctionPool]:
    pool = FunctionPool("helpers.user_functions:misbehave", {}, None, 1, 1)
    yield pool
    pool.close()


def call(pool: FunctionPool, name: str) -> torch.Tensor:
    """Let `misbehave` call a function on a dark image."""
    names = [function.__name__ for function in user_functions.MISBEHAVIOURS]
    return pool.call(torch.full((3, 6, 8), names.index(name), dtype=torch.uint8), "image", 0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("refuse_dark", r"raised LookupError: it is dark at .*user_functions\.py:\d+"),
        ("hang_if_dark", r"not returned after 1 s at .*user_functions\.py:\d+: .*`timeout`"),
        ("exit_if_dark", r"ended its process \(status 3\)"),
        ("leave_if_dark", r"raised SystemExit: it is dark at .*user_functions\.py:\d+"),
        ("crash_if_dark", r"ended its process \(SIGSEGV\) at .*user_functions\.py:\d+"),
        ("fork_if_dark", r"forks at .*user_functions\.py:\d+: .*start a program"),
        ("to_array", r"returned a ndarray, but should return a tensor"),
    ],
)
def test_a_function_that_fails_is_named_with_its_line(
    misbehaving: FunctionPool, name: str, reason: str
) -> None:
    with pytest.raises(CallFailedError, match=reason) as caught:
        call(misbehaving, name)
    if line := re.search(r"user_functions\.py:(\d+)", str(caught.value)):
        text = Path(user_functions.__file__).read_text().splitlines()[int(line[1]) - 1]
        assert re.search("raise|sleep|while|kill|exit|fork", text)


def test_a_sample_that_a_function_refuses(misbehaving: FunctionPool) -> None:
    with pytest.raises(CallFailedError) as caught:
        call(misbehaving, "skip_if_dark")
    assert caught.value.is_a(SampleIncompatibleError)
    assert caught.value.message == "it is dark"


def test_it_goes_on_after_failures(misbehaving: FunctionPool) -> None:
    with pytest.raises(CallFailedError):
        call(misbehaving, "exit_if_dark")
    assert call(misbehaving, "clone").unique().numel() == 1


def test_a_function_may_print_and_start_programs(
    open_pool: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    pool = open_pool("start_program")
    assert pool.call(LIGHT, "image", 0).dtype == torch.bfloat16
    pool.close()
    assert "of its program" in capfd.readouterr().out


def test_a_process_that_was_killed_while_it_was_free_is_started_again(open_pool: Open) -> None:
    pool = open_pool("name_process")
    with pool._open().take() as process:
        pass
    os.kill(process.pid, signal.SIGKILL)
    while not process.has_ended:
        time.sleep(0.01)
    assert find_process(pool) != process.pid


def test_when_processes_end() -> None:
    pool = FunctionPool("helpers.user_functions:name_process", {}, None, 1, 60)
    first = find_process(pool)
    copy = pickle.loads(pickle.dumps(pool))
    assert find_process(copy) != first, "a copy has processes of its own"
    pool.close()
    assert ends(first)
    assert find_process(copy) != find_process(pool), "a call after close() starts another"
    second = find_process(pool)
    del pool
    gc.collect()
    assert ends(second), "the last reference is gone"
    copy.close()
