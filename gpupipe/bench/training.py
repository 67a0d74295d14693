"""Measures the share of training time spent waiting for data; records a trace for Perfetto.

It times the same steps on a loader's batches and on a few batches that it holds in memory.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gpupipe.bench.comparison import Ratio, ratio
from gpupipe.bench.machine import gpu_of, synchronise
from gpupipe.bench.measure import (
    Tick,
    count_images,
    describe_loader,
    image_of,
    iter_endlessly,
    take,
)
from gpupipe.config import Config
from gpupipe.dataset.index import Index
from gpupipe.errors import EngineError, GpupipeError, did_you_mean
from gpupipe.loader import Loader, create_loader
from gpupipe.runtime import tracing

if TYPE_CHECKING:
    from torch import Tensor

Train = Callable[[Any], None]
_REPLAYED_BATCHES = 4
_WARM_UP_STEPS, _MIN_STEPS = 2, 3
_WIDEST = 0.5
"""The share of waiting is vague if its confidence interval is wider than this."""


@dataclass
class Training:
    """The rates of training, one number per round.

    Attributes:
        what: A description of the training step.
        fed: Images per second on the loader's batches.
        replayed: Images per second on batches held in memory, which need no loading.
    """

    what: str
    fed: list[float] = field(default_factory=list)
    replayed: list[float] = field(default_factory=list)

    @property
    def waiting(self) -> Ratio:
        """The share of training time spent waiting for data, 0 to 1, with its confidence interval.

        It includes the slowdown from sharing cores with the loader.
        """
        speed = ratio(self.fed, self.replayed)
        low, high = (None if v is None else 1 - v for v in (speed.high, speed.low))
        return Ratio(1 - speed.value, low, high)

    @property
    def accelerator_utilisation(self) -> float:
        """The accelerator utilisation (AU) of MLPerf Storage, 0 to 1.

        It is the compute time divided by the run time. The compute time is the time that the same
        steps take on batches in memory. Source: github.com/mlcommons/storage, Rules.md: AU =
        total_compute_time / total_benchmark_running_time, where the first step does not count.
        """
        return min(1.0, 1 - self.waiting.value)

    def as_json(self) -> dict[str, Any]:
        """Return the rates, and what they say about waiting, as plain JSON."""
        derived = {"accelerator_utilisation": self.accelerator_utilisation}
        return asdict(self) | {"waiting": asdict(self.waiting)} | derived

    @property
    def is_vague(self) -> bool:
        """Whether the confidence interval of `waiting` is too wide to report the share."""
        low, high = self.waiting.low, self.waiting.high
        return low is not None and high is not None and high - low > _WIDEST


def measure(
    config: Config,
    index: Index,
    what: str,
    train: Callable[[Loader], Train],
    rounds: int,
    seconds: float,
    tick: Tick,
) -> Training:
    """Time a training step on the loader's batches, then on batches kept in memory.

    Args:
        config: The config to load.
        index: Its samples.
        what: A description of the training step.
        train: Creates the training step for a loader.
        rounds: How many rounds to run.
        seconds: How long to train on each of the two kinds of batches in a round.
        tick: Called before each measurement with its description, the number done, and the total.

    Raises:
        GpupipeError: The loader cannot be created.
    """
    result = Training(what)
    for number in range(rounds):
        turn = f"round {number + 1} of {rounds}"
        tick(f"training on the loader, {turn}", 2 * number, 2 * rounds)
        with create_loader(config, index) as loader:
            step = train(loader)
            result.fed.append(_measure_rate(iter_endlessly(loader), step, seconds, loader))
            kept = _keep_batches(loader)
        tick(f"training on kept batches, {turn}", 2 * number + 1, 2 * rounds)
        result.replayed.append(_measure_rate(kept, step, seconds, loader))
        del kept
    tick("", 2 * rounds, 2 * rounds)
    return result


def ceiling(config: Config, index: Index, seconds: float) -> float:
    """Return the images per second of an empty loop over batches held in memory.

    No loader can exceed this rate.
    """
    with create_loader(config, index) as loader:
        return _measure_rate(_keep_batches(loader), lambda batch: None, seconds, loader)


def _keep_batches(loader: Loader) -> Iterator[Any]:
    """Return an endless iterator over the first four batches, which it holds in memory."""
    return itertools.cycle(list(itertools.islice(iter_endlessly(loader), _REPLAYED_BATCHES)))


def pause(milliseconds: float) -> Callable[[Loader], Train]:
    """Return an argument `train` for `measure`: each step sleeps, as if a GPU did the work."""
    return lambda loader: lambda batch: time.sleep(milliseconds / 1000)


def model(name: str) -> Callable[[Loader], Train]:
    """Return an argument `train` for `measure`, which trains a model of torchvision.

    The model has random weights. A step is forward, cross entropy, backward and SGD.

    Raises:
        EngineError: If torchvision has no such model.
    """
    import torchvision.models

    if name not in (models := torchvision.models.list_models(module=torchvision.models)):
        raise EngineError(
            f"torchvision has no classification model '{name}'{did_you_mean(name, models)}"
        )
    return lambda loader: _create_model_step(name, loader)


def _create_model_step(name: str, loader: Loader) -> Train:
    import torch
    import torchvision.models

    device = "cpu" if loader.engine.device == "cpu" else loader.engine.device.replace("gpu", "cuda")
    classes = loader.mixer.num_classes
    net = torchvision.models.get_model(name, weights=None, num_classes=classes).to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def train(batch: Any) -> None:
        image, label = _pair(batch)
        try:
            output = net(image.float())
        except RuntimeError as e:
            raise EngineError(
                f"model {name} cannot take images of shape {tuple(image.shape)}: "
                f"{str(e).splitlines()[0]}"
            ) from e
        loss = torch.nn.functional.cross_entropy(getattr(output, "logits", output), label)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return train


def _pair(batch: Any) -> "tuple[Tensor, Tensor]":
    if isinstance(batch, tuple):
        return batch
    if "label" not in batch:
        raise GpupipeError("a network is trained on labels, and the samples have none")
    return image_of(batch), batch["label"]


def _measure_rate(batches: Iterator[Any], train: Train, seconds: float, loader: Loader) -> float:
    """Return the images per second of training, after two warm-up steps."""

    def train_and_count(batch: Any) -> int:
        train(batch)
        return count_images(batch)

    counts = map(train_and_count, batches)
    take(counts, loader, batches=_WARM_UP_STEPS)
    images, elapsed = take(counts, loader, seconds=seconds)
    return images / elapsed


def record_training(
    config: Config, index: Index, train: Callable[[Loader], Train] | None, seconds: float
) -> dict[str, Any]:
    """Train for some seconds, at least three steps, and return the trace.

    On a GPU every span is also an NVTX range of the same name, for Nsight Systems.

    Args:
        config: The config to load.
        index: Its samples.
        train: Creates the training step for a loader; None for steps that do nothing.
        seconds: How long to record.

    Returns:
        The trace, in Chrome's trace format, as plain JSON. `otherData` describes the loader,
        and has the number of steps.

    Raises:
        GpupipeError: The loader cannot be created.
    """
    import torch

    with create_loader(config, index) as loader:
        step: Train = train(loader) if train else lambda batch: None
        stream = iter_endlessly(loader)
        for _ in range(_WARM_UP_STEPS):
            step(next(stream))
        synchronise(loader)
        open_range = nullcontext if gpu_of(loader) is None else torch.cuda.nvtx.range
        with tracing.record(open_range) as recorder:
            started, number = time.perf_counter(), 0
            while number < _MIN_STEPS or time.perf_counter() - started < seconds:
                batch = next(stream)
                with tracing.span("step", "trainer", step=number):
                    step(batch)
                number += 1
            synchronise(loader)
        stream.close()
        return recorder.as_json(**describe_loader(loader), steps=number)
