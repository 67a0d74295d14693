"""The contract of a loader as a check that authors of engines, sources and steps can run on their
own.

def test_mine():
    gpupipe.testing.check_loader(lambda **changes: gpupipe.load(CONFIG, **changes))
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gpupipe.errors import GpupipeError
from gpupipe.loader import Loader

Make = Callable[..., Loader]
_Samples = dict[int, tuple[int, bytes]]
"""Of each sample its label, and a hash of its first field."""
_LEAST = 8
_WHOLE = 100
"""Of a larger set most rules look at so many samples of an epoch."""
_BATCHES = 32
"""As many as an epoch of a larger set has."""


@dataclass(frozen=True)
class _Case:
    """What is checked. make: with settings; size: of a batch; most: samples of an epoch to look
    at.
    """

    make: Make
    count: int
    size: int
    most: float
    epochs: list[_Samples]

    def new(self, **changes: Any) -> Loader:
        return _new(self.make, **{"batch_size": self.size} | changes)

    def agree(self, batches: Iterable[Any], expected: _Samples, rule: str) -> None:
        """Raises AssertionError where the batches are not of the expected samples."""
        found, ended = _taken(batches, self.most)
        if not ended:  # then they are the first of the order in which the epoch came before
            expected = dict(itertools.islice(expected.items(), len(found)))
        lost, more = expected.keys() - found.keys(), found.keys() - expected.keys()
        message = f"samples {_few(lost)} were lost, and {_few(more)} are too many"
        assert not (lost or more), f"{rule}: {message}"
        other = {i for i, sample in found.items() if sample != expected[i]}
        assert not other, f"{rule}: samples {_few(other)} have other pixels or labels"


def check_loader(make: Make) -> None:
    """Raises AssertionError, saying which rule is broken, unless the loaders that `make` makes keep
    gpupipe's laws.

    It takes the time of about nine epochs, and more where there are fewer than 100 samples.

    Args: make: Gets settings of the loader as keyword arguments (batch_size, seed, shard, ids,
        format,
            last_batch), and returns a Loader over at least 8 samples, none of which is corrupt. It
            is called about 20 times.

    """
    with _new(make, batch_size=3) as loader:
        count = len(loader.index)
    assert count >= _LEAST, f"check_loader needs {_LEAST} samples, and there are {count}"
    size = max(3, count // _BATCHES)
    with _new(make, batch_size=size) as loader:
        epochs = [_taken(loader, math.inf)[0] for _ in range(2)]
    case = _Case(make, count, size, math.inf if count <= _WHOLE else _WHOLE, epochs)
    for rule in (
        _every_sample_once,
        _draws_do_not_depend_on_batches,
        _iterations,
        _states,
        _ranks,
        _ends,
    ):
        rule(case)


def _new(make: Make, **changes: Any) -> Loader:
    usual = {"ids": True, "format": "dict", "seed": 5, "last_batch": "partial"}
    return make(**usual | {"shard": {"rank": 0, "world_size": 1}} | changes)


def _every_sample_once(case: _Case) -> None:
    for epoch in case.epochs:
        assert sorted(epoch) == list(range(case.count)), "an epoch holds every sample once"
    for last_batch in ("partial", "drop", "pad"):
        with case.new(last_batch=last_batch) as loader:
            sizes = [len(b["id"]) for b in loader]
            rule = f"len() is the number of batches (last_batch: {last_batch})"
            assert len(sizes) == len(loader), rule
            assert min(sizes) > 0, "no batch is empty"


def _draws_do_not_depend_on_batches(case: _Case) -> None:
    for size in (1, min(case.count, 2 * _WHOLE)):
        with case.new(batch_size=size) as loader:
            rule = f"with batches of {size} a sample is what it is with batches of {case.size}"
            case.agree(loader, case.epochs[0], rule)


def _iterations(case: _Case) -> None:
    with case.new() as loader:
        next(iter(loader))
        case.agree(loader, case.epochs[1], "after a break comes the whole next epoch")
        loader.sampler.set_epoch(0)
        case.agree(loader, case.epochs[0], "set_epoch() says which epoch comes")
        iterator = iter(loader)
        loader.sampler.set_epoch(1)
        case.agree(iterator, case.epochs[1], "set_epoch() counts also behind iter()")


def _states(case: _Case) -> None:
    states: list[tuple[set[int], dict[str, Any]]] = []
    with case.new() as loader:
        seen: set[int] = set()
        for batch in loader:
            seen.update(batch["id"].tolist())
            states.append((set(seen), json.loads(json.dumps(loader.state_dict()))))
    late = max(len(states) // 2, len(states) - 1 - _WHOLE // case.size)
    for delivered, state in (states[0], states[late]):
        rest = {i: s for i, s in case.epochs[0].items() if i not in delivered}
        for size in (case.size, case.size - 1):
            with case.new(batch_size=size) as loader:
                loader.load_state_dict(state)
                goes_on = (
                    f"a state after {len(delivered)} samples goes on with the rest (batches of "
                    f"{size})"
                )
                case.agree(loader, rest, goes_on)
                case.agree(loader, case.epochs[1], "and then with the next epoch")
    with case.new() as loader:
        loader.load_state_dict(states[-1][1])
        rule = "a state behind the last batch goes on with the next epoch"
        case.agree(loader, case.epochs[1], rule)


def _ranks(case: _Case) -> None:
    for world_size in (2, 3):
        found: _Samples = {}
        steps = set()
        for rank in range(world_size):
            shard = {"rank": rank, "world_size": world_size}
            with case.new(batch_size=case.size - 1, shard=shard) as loader:
                mine, _ = _taken(loader, math.inf)
                steps.add(len(loader))
            assert not mine.keys() & found.keys(), "no sample comes to two ranks"
            found |= mine
        assert len(steps) == 1, "all ranks have equal steps"
        assert found == case.epochs[0], f"{world_size} ranks share an epoch out"


def _ends(case: _Case) -> None:
    loader = case.new()
    old = iter(loader)
    next(old)
    next(iter(loader))
    _raises(old, "an older iteration does not go on beside a newer one")
    loader.close()
    loader.close()
    try:
        iter(loader)
    except GpupipeError:
        return
    raise AssertionError("a closed loader refuses to iterate")


def _raises(iterator: Iterator[Any], rule: str) -> None:
    try:
        next(iterator)
    except GpupipeError:
        return
    raise AssertionError(rule)


def _taken(batches: Iterable[Any], most: float) -> tuple[_Samples, bool]:
    """The samples of the first batches, `most` or a few more; and whether that is all."""
    found: _Samples = {}
    for batch in batches:
        fields = batch["id"].tolist(), batch["label"].tolist(), next(iter(batch.values())).cpu()
        for id, label, array in zip(*fields, strict=True):
            assert id not in found, f"sample {id} came twice in an epoch"
            found[id] = label, _hash(array)
        if len(found) >= most:
            return found, False
    return found, True


def _hash(array: torch.Tensor) -> bytes:
    content = array.contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(content.data, digest_size=16).digest()


def _few(ids: Iterable[int]) -> str:
    first = list(itertools.islice(sorted(ids), 6))
    return f"{first[:5]}{'...' if len(first) > 5 else ''}"
