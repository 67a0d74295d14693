"""How much of a training step is spent waiting for data: the same steps on a loader's batches and
on batches that are kept.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpupipe.bench.measure import endless, image_of, synchronise
from gpupipe.bench.statistics import Ratio, ratio
from gpupipe.config import Config
from gpupipe.dataset.index import Index
from gpupipe.errors import EngineError, did_you_mean
from gpupipe.loader import Loader, over

if TYPE_CHECKING:
    from torch import Tensor

Train = Callable[[Any], None]
Tick = Callable[[str, int, int], None]
_KEPT = 4
_WARM_UP_STEPS = 2
_WIDEST = 0.5
"""Of an interval of the share of waiting that tells anything."""


@dataclass
class Training:
    """Images a second, a figure a round: `fed` by the loader, and on `replayed` batches, which cost
    nothing.
    """

    what: str
    fed: list[float] = field(default_factory=list)
    replayed: list[float] = field(default_factory=list)

    @property
    def waiting(self) -> Ratio:
        """The share of the time of training that goes to waiting for data (and to sharing cores
        with the loader), with its interval.
        """
        found = ratio(self.fed, self.replayed)
        low, high = (None if v is None else 1 - v for v in (found.high, found.low))
        return Ratio(1 - found.value, low, high)

    @property
    def vague(self) -> bool:
        """Whether the rounds differ so much that the share is not known."""
        waiting = self.waiting
        return (
            waiting.low is not None
            and waiting.high is not None
            and waiting.high - waiting.low > _WIDEST
        )


def measure(
    config: Config,
    index: Index,
    what: str,
    train: Callable[[Loader], Train],
    rounds: int,
    seconds: float,
    tick: Tick,
) -> Training:
    """Train for `seconds` on each kind of batches, `rounds` times.

    train: makes the step for a loader. Raises what load() raises.
    """
    found = Training(what)
    for number in range(rounds):
        tick(f"training on the loader, round {number + 1} of {rounds}", 2 * number, 2 * rounds)
        with over(config, index) as loader:
            step = train(loader)
            found.fed.append(_rate(endless(loader), step, seconds, loader))
            kept = list(itertools.islice(endless(loader), _KEPT))
        tick(
            f"training on kept batches, round {number + 1} of {rounds}", 2 * number + 1, 2 * rounds
        )
        found.replayed.append(_rate(itertools.cycle(kept), step, seconds, loader))
        del kept
    tick("", 2 * rounds, 2 * rounds)
    return found


def ceiling(config: Config, index: Index, seconds: float) -> float:
    """Images a second of a loop over kept batches that does nothing with them: what no loader can
    exceed.
    """
    with over(config, index) as loader:
        return _rate(
            itertools.cycle(list(itertools.islice(endless(loader), _KEPT))),
            lambda batch: None,
            seconds,
            loader,
        )


def pause(milliseconds: float) -> Callable[[Loader], Train]:
    """A step in which the CPU has nothing to do: what a GPU's work looks like to a loader."""
    return lambda loader: lambda batch: time.sleep(milliseconds / 1000)


def model(name: str) -> Callable[[Loader], Train]:
    """Forward, cross entropy, backward and SGD of a model of torchvision, without weights.

    Raises EngineError where there is no such model.
    """
    import torchvision.models

    if name not in (known := torchvision.models.list_models(module=torchvision.models)):
        raise EngineError(
            f"torchvision has no classification model '{name}'{did_you_mean(name, known)}"
        )
    return lambda loader: _model(name, loader)


def _model(name: str, loader: Loader) -> Train:
    import torch
    import torchvision.models

    device = "cpu" if loader.engine.device == "cpu" else loader.engine.device.replace("gpu", "cuda")
    net = (
        torchvision.models.get_model(name, weights=None, num_classes=len(loader.index.classes))
        .to(device)
        .train()
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def train(batch: Any) -> None:
        image, label = _pair(batch)
        try:
            found = net(image.float())
        except RuntimeError as e:
            raise EngineError(
                f"model {name} cannot take images of shape {tuple(image.shape)}: "
                f"{str(e).splitlines()[0]}"
            ) from e
        loss = torch.nn.functional.cross_entropy(getattr(found, "logits", found), label)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()

    return train


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    return batch if isinstance(batch, tuple) else (image_of(batch), batch["label"])


def _rate(batches: Iterable[Any], train: Train, seconds: float, loader: Loader) -> float:
    """Images a second of training, after two steps that are not counted."""
    stream = iter(batches)
    for _ in range(_WARM_UP_STEPS):
        train(next(stream))
    synchronise(loader)
    started, images = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        batch = next(stream)
        train(batch)
        images += len(image_of(batch))
    synchronise(loader)
    return images / (time.perf_counter() - started)
