from __future__ import annotations

import gc
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from gpupipe.pipeline.step import SampleIncompatibleError
from gpupipe.runtime.function_failures import CallFailedError
from gpupipe.runtime.function_workers import FunctionWorkers
from gpupipe.runtime.user_functions import FunctionMissingError
from helpers import user_functions

LIGHT = torch.arange(100, 244, dtype=torch.uint8).reshape(3, 6, 8)
DARK = torch.zeros(3, 6, 8, dtype=torch.uint8)
Open = Callable[..., FunctionWorkers]


@pytest.fixture
def open_workers() -> Iterator[Open]:
    opened: list[FunctionWorkers] = []

    def open_(name: Any, count: int = 1, timeout: float = 60, **args: Any) -> FunctionWorkers:
        call = f"helpers.user_functions:{name}" if isinstance(name, str) else name
        opened.append(FunctionWorkers(call, args, None, count, timeout))
        return opened[-1]

    yield open_
    for workers in opened:
        workers.close()


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def find_process(workers: FunctionWorkers) -> int:
    return int(workers.call(LIGHT, "image", 0)[0, 0, 0])


def test_the_function_runs_in_another_process_on_a_copy(open_workers: Open) -> None:
    workers = open_workers("stamp", strength=0.5)
    before = LIGHT.clone()
    first, again, other = (workers.call(LIGHT, "image", seed) for seed in (1, 1, 2**53 - 1))
    assert torch.equal(LIGHT, before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    expected = user_functions.stamp(LIGHT.clone(), torch.Generator().manual_seed(1))
    assert torch.equal(first, expected)
    assert find_process(open_workers("name_process")) != os.getpid()


def test_the_seed_decides_draws_from_global_generators(open_workers: Open) -> None:
    one, two = open_workers("draws_of_all"), open_workers("draws_of_all", count=2)
    drawn = [one.call(LIGHT, "image", seed) for seed in (5, 6)]
    assert not torch.equal(*drawn)
    with ThreadPoolExecutor(2) as threads:
        again = list(threads.map(lambda seed: two.call(LIGHT, "image", seed), [6, 5, 6, 5]))
    assert all(torch.equal(a, b) for a, b in zip(again, [*drawn[::-1], *drawn[::-1]], strict=True))


def test_all_processes_work_at_once_while_this_one_is_free(open_workers: Open) -> None:
    workers = open_workers("work", count=2)
    with ThreadPoolExecutor(4) as threads:
        made = threads.map(lambda seed: workers.call(LIGHT, "image", seed), range(8))
        processes = {int(image[0, 0, 0]) for image in made}
    assert len(processes) == 2


@pytest.mark.parametrize(
    "image",
    [
        LIGHT,
        LIGHT.permute(0, 2, 1),
        torch.rand(1, 5, 7),
        torch.rand(3, 300, 200),
        torch.rand(2, 3, 3).to(torch.bfloat16),
        torch.rand(3, 2, 2) > 0.5,
        torch.empty(3, 0, 4),
    ],
    ids=lambda i: f"{tuple(i.shape)}-{i.dtype}",
)
def test_pixels_of_any_dtype_and_size_arrive(open_workers: Open, image: torch.Tensor) -> None:
    workers = open_workers(torch.nn.Identity())
    for _ in range(2):
        returned = workers.call(image, "image", 0)
        assert returned.dtype == image.dtype
        assert torch.equal(returned, image)


def test_a_function_that_keeps_its_image_changes_no_other(open_workers: Open) -> None:
    workers = open_workers("keep")
    first = workers.call(LIGHT, "image", 0)
    workers.call(DARK, "image", 0)
    assert torch.equal(first, LIGHT[:, 1:])


def test_a_class_is_constructed_in_the_process(open_workers: Open) -> None:
    before = user_functions.Divide.constructed
    assert torch.equal(open_workers("Divide", by=2).call(LIGHT, "left", 0), LIGHT // 2)
    assert user_functions.Divide.constructed == before


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
    open_workers: Open, name: str, reason: str
) -> None:
    workers = open_workers(name, timeout=1)
    if name != "to_array":
        assert torch.equal(workers.call(LIGHT, "image", 0), LIGHT)
    with pytest.raises(CallFailedError, match=reason) as caught:
        workers.call(DARK, "image", 0)
    if line := re.search(r"user_functions\.py:(\d+)", str(caught.value)):
        text = Path(user_functions.__file__).read_text().splitlines()[int(line[1]) - 1]
        assert re.search("raise|sleep|while|kill|exit|fork", text)
    if name != "to_array":
        assert torch.equal(workers.call(LIGHT, "image", 0), LIGHT), "it goes on"


def test_a_sample_that_a_function_refuses(open_workers: Open) -> None:
    with pytest.raises(CallFailedError) as caught:
        open_workers("skip_if_dark").call(DARK, "image", 0)
    assert caught.value.is_a(SampleIncompatibleError)
    assert caught.value.message == "it is dark"


def test_a_function_may_print_and_start_programs(
    open_workers: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    workers = open_workers("start_program")
    assert workers.call(LIGHT, "image", 0).dtype == torch.bfloat16
    workers.close()
    assert "of its program" in capfd.readouterr().out


def test_close_ends_the_processes_and_a_later_call_starts_them_again(open_workers: Open) -> None:
    workers = open_workers("name_process")
    first = find_process(workers)
    assert find_process(workers) == first
    workers.close()
    assert not is_alive(first)
    assert find_process(workers) != first


def test_processes_end_with_the_last_reference() -> None:
    workers = FunctionWorkers("helpers.user_functions:name_process", {}, None, 1, 60)
    process = find_process(workers)
    del workers
    gc.collect()
    assert not is_alive(process)


SCRIPT = """
import os, threading, time, torch
from gpupipe.runtime.function_workers import FunctionWorkers
workers = FunctionWorkers("helpers.user_functions:hang_if_dark", {}, None, 1, 60)
workers.call(torch.full((3, 2, 2), 200), "image", 0)
print(workers._free[0]._process.pid, flush=True)
threading.Thread(target=workers.call, args=(torch.zeros(3, 2, 2), "image", 0)).start()
time.sleep(0.5)
os.kill(os.getpid(), 9)
"""


def test_a_process_ends_with_its_parent_even_if_the_function_hangs() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, env=env
    ) as parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        parent.stdout.read()  # until both have ended, since the process has the pipe, too
    for _ in range(100):
        if not is_alive(process):
            break
        time.sleep(0.1)
    assert not is_alive(process)


def test_a_copy_in_another_process_has_workers_of_its_own(open_workers: Open) -> None:
    workers = open_workers("name_process")
    process = find_process(workers)
    copy = pickle.loads(pickle.dumps(workers))
    assert find_process(copy) != process
    copy.close()
    assert is_alive(process)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda image: image,
            r"be sent to a process \(.*'module:function', or set workers: 0",
        ),
        ("helpers.user_functions:Divide", "cannot be constructed: TypeError"),
        ("no_such_module:f", "no_such_module cannot be imported"),
    ],
    ids=["lambda", "arguments", "module"],
)
def test_what_a_process_cannot_import(open_workers: Open, call: Any, message: str) -> None:
    workers = FunctionWorkers(call, {}, None, 1, 60)
    with pytest.raises(FunctionMissingError, match=message):
        workers.call(LIGHT, "image", 0)
