"""The way of a batch to a GPU and on it: everything arrives there, nothing waits for it, and memory
lasts as long as it is used.
"""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe import config as configs
from gpupipe.dataset.index import build_empty
from gpupipe.engines.base import Job
from gpupipe.engines.batch import labels_and_values
from gpupipe.engines.last_steps import BatchFinisher, copy_to_gpu, find_tail, leave_steps
from gpupipe.runtime.memory import record_stream
from gpupipe.sampling.sampler import Plan
from helpers.fake_gpu import GPU, STREAM, FakeGpu

FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}
NORMALIZE = {"normalize": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2]}}
TAILS: list[tuple[list[Any], str | None, torch.dtype]] = [
    ([FLOATS], None, torch.float32),
    ([FLOATS, NORMALIZE], None, torch.float32),
    ([FLOATS, NORMALIZE], "bfloat16", torch.bfloat16),
    (
        [{"to_dtype": {"dtype": "float16"}}, {"normalize": {"mean": [3], "std": [2]}}],
        "float32",
        torch.float32,
    ),
    ([{"to_dtype": {"dtype": "int16", "scale": True}}], None, torch.int16),
    ([FLOATS, {"to_dtype": {"dtype": "int8", "scale": True}}], None, torch.int8),
]


def left(steps: list[Any], dtype: str | None) -> BatchFinisher:
    """What a client does that is left these steps."""
    changes = {} if dtype is None else {"dtype": dtype}
    config = configs.read(
        {"data": {"source": "folder", "root": "/nowhere"}, "pipeline": ["decode", *steps]},
        **changes,
    )
    job = Job(build_empty(), config.pipeline, config.loader, 1)
    return BatchFinisher(leave_steps(job, find_tail(config.pipeline)), None)


def received() -> dict[str, torch.Tensor]:
    """A batch in the memory that it was received into."""
    tensors = {
        "image": torch.empty(4, 3, 20, 30, dtype=torch.uint8),
        "label": torch.empty(4, dtype=torch.int64),
        "id": torch.empty(4, dtype=torch.int64),
    }
    return {name: tensor.pin_memory() for name, tensor in tensors.items()}


@pytest.mark.parametrize(("steps", "dtype", "made"), TAILS, ids=str)
def test_what_is_left_to_a_client_is_done_on_its_gpu(
    steps: list[Any], dtype: str | None, made: torch.dtype
) -> None:
    finish = left(steps, dtype)
    with FakeGpu() as gpu:
        arrived = received()
        batch = finish._run_steps(copy_to_gpu(arrived, GPU), Plan(0, np.arange(4), 0, last=False))
        assert {name: tensor.device for name, tensor in batch.items()} == {
            "image": GPU,
            "label": GPU,
            "id": torch.device("cpu"),
        }
        assert batch["image"].dtype == made
        assert batch["id"] is not arrived["id"], (
            "or the ids would hold the memory of the whole batch"
        )
        record_stream(batch, STREAM)
    assert [(tensor.device, stream) for tensor, stream in gpu.recorded] == [(GPU, STREAM)] * 2
    assert {id(tensor) for tensor, _ in gpu.recorded} == {id(batch["image"]), id(batch["label"])}


def test_labels_and_values_are_copied_without_waiting_and_ids_not_at_all() -> None:
    index = replace(build_empty(), labels=np.arange(5), values={"box": np.ones((5, 4), np.float32)})
    plan = Plan(0, np.arange(1, 4), 4, False)
    on_cpu = labels_and_values(index, plan, torch.device("cpu"))
    assert on_cpu["id"].tolist() == on_cpu["label"].tolist() == [1, 2, 3]
    with FakeGpu():
        batch = labels_and_values(index, plan, GPU)
        assert {name: tensor.device for name, tensor in batch.items()} == {
            "box": GPU,
            "label": GPU,
            "id": torch.device("cpu"),
        }
        assert batch["box"].shape == (3, 4)


PACKAGE = Path(gpupipe.__file__).parent
ON_THE_WAY = [
    *(file for file in PACKAGE.glob("engines/**/*.py") if file.parts[-2:] != ("ray", "worker.py")),
    PACKAGE / "protocol" / "shared_memory.py",
    PACKAGE / "loader.py",
    PACKAGE / "lightning.py",
    PACKAGE / "runtime/memory.py",
    PACKAGE / "steps" / "to_dtype.py",
]
"""What a batch passes in the process that trains.

protocol/batch_bytes.py and engines/ray/worker.py are not among it: a server and a worker wait for
what they send.
"""
WAITS = {"cpu", "item", "cuda", "synchronize"}
ALLOWED = {
    "self._stream.synchronize()",
    "torch.cuda.synchronize(self._device_id)",
    "torch.cuda.synchronize(gpu)",
    "torch.cuda.current_stream(values.device).synchronize()",
}
"""The connection's thread waits for the copies that it began, and training does not wait for that
thread. A batch that failed waits to learn whether the GPU is to blame (KnownGood). A loader that is
closed waits until nothing uses the memory that DALI frees (release_unused_memory). Images of
unequal size are copied out of DALI's memory, which DALI reuses.
"""


def waiting(source: str) -> Iterator[str]:
    """Calls by which the CPU would wait for a GPU: `.cpu()`, `.item()`, `.cuda()`, `synchronize()`,
    and `.to()` of a device that blocks.
    """
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        text = ast.unparse(node)
        if (node.func.attr in WAITS and text not in ALLOWED) or (
            node.func.attr == "to" and not _is_sound(node)
        ):
            yield text


def _is_sound(call: ast.Call) -> bool:
    """Of `.to()`: that it says that it does not block, or names a dtype alone."""
    if any(
        keyword.arg == "non_blocking" and ast.unparse(keyword.value) == "True"
        for keyword in call.keywords
    ):
        return True
    if len(call.args) != 1 or call.keywords:
        return False
    return "dtype" in (said := ast.unparse(call.args[0])) or said in {
        f"torch.{name}" for name in ("bfloat16", "float32", "int64", "uint8")
    }


def test_nothing_on_the_way_of_a_batch_waits_for_the_gpu() -> None:
    found = [
        f"{file.relative_to(PACKAGE)}: {text}"
        for file in ON_THE_WAY
        for text in waiting(file.read_text(encoding="utf-8"))
    ]
    assert not found, "pin the tensor and copy it with non_blocking: see gpupipe/runtime/memory.py"


@pytest.mark.parametrize(
    "line",
    [
        "x.cpu()",
        "x.item()",
        "batch['id'].cpu().numpy()",
        "x.to(device)",
        "x.to(device, non_blocking=False)",
        "torch.cuda.synchronize()",
        "x.cuda()",
    ],
)
def test_what_would_wait_is_seen(line: str) -> None:
    assert list(waiting(line))


@pytest.mark.parametrize(
    "line",
    [
        "x.to(device, non_blocking=True)",
        "x.to(torch.bfloat16)",
        "x.to(image.dtype)",
        "x.to(getattr(torch, self._dataset.dtype))",
    ],
)
def test_what_does_not_is_not(line: str) -> None:
    assert not list(waiting(line))
