import os
import signal
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import pytest
import torch

from gpupipe.runtime.function_failures import CallFailedError
from gpupipe.runtime.function_process import FunctionProcess
from gpupipe.runtime.shared_tensors import SharedTensors
from gpupipe.runtime.user_functions import FunctionMissingError

LIGHT = torch.arange(100, 244, dtype=torch.uint8).reshape(3, 6, 8)


@pytest.fixture(scope="module")
def memory() -> Iterator[SharedTensors]:
    memory = SharedTensors.create()
    yield memory
    os.close(memory.fd)


@pytest.fixture(scope="module")
def identity(memory: SharedTensors, forked_in_module: None) -> Iterator[FunctionProcess]:
    process = FunctionProcess(torch.nn.Identity(), {}, None, memory)
    yield process
    process.end()


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
def test_pixels_of_any_dtype_and_size_arrive(
    identity: FunctionProcess, image: torch.Tensor
) -> None:
    for _ in range(2):
        returned = identity.call(image, "image", 0, 60)
        assert isinstance(returned, torch.Tensor)
        assert returned.dtype == image.dtype
        assert torch.equal(returned, image)


def test_a_process_that_ends_in_the_middle_of_an_answer(
    memory: SharedTensors, forked_in_module: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = FunctionProcess(torch.nn.Identity(), {}, None, memory)
    answers, ended = Pipe(duplex=False)
    os.write(ended.fileno(), b"\0\0\0\x09{")
    ended.close()
    monkeypatch.setattr(process, "_answers", answers)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(CallFailedError, match=r"ended its process \(SIGKILL\): out of memory"):
        process.call(LIGHT, "image", 0, 60)
    process.end()


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
def test_what_a_process_cannot_import(
    memory: SharedTensors, forked_in_module: None, call: Any, message: str
) -> None:
    with pytest.raises(FunctionMissingError, match=message):
        FunctionProcess(call, {}, None, memory)
