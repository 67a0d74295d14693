"""Do batches stay what they are while kernels are queued on them?

A consumer that never waits queues 50 ms of matrix products, then a checksum of the batch, and drops
the batch, 300 times: its memory must not be used again before the checksum is done. A second run
waits for the GPU after every batch. The checksums of the two must be the same. The DALI engine, the
CPU engine and the remote engine (shared memory and TCP, uint8 and finished batches) do this on the
current stream of the process, and on a stream of the consumer's own. A control, which copies
batches to the GPU on a side stream without record_stream, must be seen to change: else the stress
shows nothing.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import part
import torch

_QUICK_BATCHES = 12
_BATCH_SIZE, _QUICK_BATCH_SIZE = 64, 4
_BUSY_SECONDS = 0.05
_SIDE = 8192
_SECONDS = 60.0
_CONTROL = "a control that must change"
_STEPS: list[Any] = [
    "decode",
    {"random_resized_crop": {"size": 224}},
    "random_horizontal_flip",
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
]
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CASES: dict[str, dict[str, Any]] = {
    "dali": {"batches": 300},
    "remote": {"batches": 300, "transport": "shm", "ship": "uint8"},
    "dali, bfloat16 on an own stream": {"batches": 100, "own_stream": True, "dtype": "bfloat16"},
    "remote on an own stream": {"batches": 100, "transport": "tcp", "own_stream": True},
    "engine: cpu": {"batches": 300, "engine": "cpu"},
    "engine: cpu on an own stream": {"batches": 100, "engine": "cpu", "own_stream": True},
    _CONTROL: {"batches": 100},
}


def main() -> None:
    arguments = part.options(__doc__).parse_args()
    part.prepare(arguments)
    if arguments.stage:
        print(json.dumps(_stress(arguments.stage[0], arguments)))
        return
    part.images(arguments, "lfw", _count(arguments))
    result = part.Part("streams", arguments)
    missing = [name for name in ("zmq", "msgspec") if find_spec(name) is None]
    result.figures(left_out=[f"the remote engine: {' and '.join(missing)} missing"] * bool(missing))
    cases = [name for name, case in _CASES.items() if not (missing and "transport" in case)]
    cases = cases if arguments.device == "gpu" else cases[:2]  # the others differ in streams alone
    for name in cases:
        result.attempt(name, partial(_add_case, result, name, arguments))
    left_out = "; the remote engine was left out" if missing else ""
    result.headline(f"checksums of {', '.join(cases)}{left_out}")
    result.finish()


def _add_case(result: part.Part, name: str, arguments: argparse.Namespace) -> None:
    found = part.stage(__file__, arguments, name, limit=_SECONDS)
    result.figures(**{name: found})
    wrong = found["wrong"]
    text = f"{len(wrong)} of {found['batches']} batches changed: {wrong[:10]}"
    if name == _CONTROL:
        result.check("the control is seen to change", bool(wrong), text)
        return
    result.check(f"{name}: queued work sees its batches", not wrong, text)
    text = f"the consumer was up to {found['ahead_seconds']:.2f} s ahead"
    if arguments.device == "gpu":
        result.check(f"{name}: work was queued", found["ahead_seconds"] > _BUSY_SECONDS, text)


def _count(arguments: argparse.Namespace) -> int:
    return 40 if arguments.quick else 2000


# --- one case, in a process of its own


def _stress(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    root, _ = part.images(arguments, "lfw", _count(arguments))
    batch_size = _QUICK_BATCH_SIZE if arguments.quick else _BATCH_SIZE
    config = {
        "data": {"source": "folder", "root": str(root)},
        "pipeline": _STEPS,
        "loader": {"batch_size": batch_size, "seed": 3, "ids": True, "last_batch": "drop"},
    }
    case = _CASES[name]
    count = _QUICK_BATCHES if arguments.quick else case["batches"]
    work = busy_work(arguments.device, case.get("own_stream", False))
    open_loader = partial(_loader, config, case, arguments.device)
    if name == _CONTROL:
        open_loader = partial(_control, config)
    with open_loader() as loader:
        expected, _ = checksums(loader, count, lambda: None, wait=True)
    with open_loader() as loader, work.stream():
        found, ahead = checksums(loader, count, work.queue, wait=False)
    wrong = [n for n, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
    return {"batches": count, "wrong": wrong, "ahead_seconds": ahead, "products": work.products}


@contextlib.contextmanager
def _loader(config: dict[str, Any], case: dict[str, Any], device: str) -> Iterator[Any]:
    """Decoding is with hw_decoder_load 0, where a run repeats to the bit."""
    import gpupipe
    from gpupipe.server.start import start_server

    if "transport" not in case:
        engine = case.get("engine", "dali")
        options = {"engine": engine, "device": device, "dtype": case.get("dtype")}
        with gpupipe.load(config, hw_decoder_load=0.0, **options) as loader:
            yield loader
        return
    served = config | {"loader": config["loader"] | {"engine": "dali", "device": "cpu"}}
    with start_server(served, port=0, ship=case.get("ship", "batch")) as server:
        options = {"device": device, "transport": case["transport"], "ids": True}
        with gpupipe.connect(server.address, **options) as loader:
            yield loader


@contextlib.contextmanager
def _control(config: dict[str, Any]) -> Iterator[Any]:
    """Batches of the CPU, copied on a side stream, whose memory is free once they are dropped."""
    import gpupipe

    stream = torch.cuda.Stream()

    def copied(loader: Any) -> Iterator[dict[str, torch.Tensor]]:
        for batch in loader:
            with torch.cuda.stream(stream):
                there = {
                    name: field.pin_memory().cuda(non_blocking=True)
                    for name, field in batch.items()
                }
            stream.synchronize()
            yield there
            del there

    with gpupipe.load(config, engine="dali", device="cpu") as loader:
        yield _Again(partial(copied, loader))


class _Again:
    """An iterable whose every iteration is a new one."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


class Busy:
    """Work of a known length for a GPU. products: how many matrix products a batch waits for."""

    def __init__(self, own_stream: bool) -> None:
        self._matrix = torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16)
        self._out = torch.empty_like(self._matrix)
        self._stream = torch.cuda.Stream() if own_stream else None
        seconds = min(self._timed() for _ in range(5))
        self.products = max(1, round(_BUSY_SECONDS / seconds))

    def _timed(self) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        torch.mm(self._matrix, self._matrix, out=self._out)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    def stream(self) -> contextlib.AbstractContextManager[Any]:
        """The stream of the consumer."""
        return torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext()

    def queue(self) -> None:
        """Queue _BUSY_SECONDS of work on the current stream."""
        for _ in range(self.products):
            torch.mm(self._matrix, self._matrix, out=self._out)


class Idle:
    """The same where there is no GPU: nothing is queued."""

    products = 0

    def stream(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def queue(self) -> None:
        """Do nothing."""


def busy_work(device: str, own_stream: bool) -> Busy | Idle:
    return Busy(own_stream) if device == "gpu" else Idle()


def checksums(
    loader: Any, count: int, queue: Callable[[], None], wait: bool
) -> tuple[list[list[int]], float]:
    """Of each of `count` batches a sum of every field, and for how long the GPU lagged at the end.

    queue: queues work before each sum. wait: for the GPU after each batch.
    """
    sums: list[torch.Tensor] = []
    while len(sums) < count:
        for batch in loader:
            queue()
            sums.append(torch.stack([checksum(field) for field in batch.values()]))
            del batch
            if wait:
                _wait()
            if len(sums) == count:
                break
    started = time.perf_counter()
    _wait()
    return torch.stack(sums).cpu().tolist(), time.perf_counter() - started


def checksum(field: torch.Tensor) -> torch.Tensor:
    """int64: the sum of a field's words as integers, weighted by place, so that a swap shows."""
    words = field.contiguous().flatten().view(_WORDS[field.element_size()])
    return (words * (torch.arange(len(words), device=words.device) % 65521 + 1)).sum()


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
