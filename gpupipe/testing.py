"""The contract of a loader as a check that authors of engines, sources and steps can run on their own.

def test_mine():
    gpupipe.testing.check_loader(lambda **changes: gpupipe.load(CONFIG, **changes))
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from gpupipe.errors import GpupipeError
from gpupipe.loader import Loader

Make = Callable[..., Loader]
_Samples = dict[int, tuple[int, torch.Tensor]]
_LEAST = 8


def check_loader(make: Make) -> None:
    """Raises AssertionError, saying which rule is broken, unless the loaders that `make` makes keep gpupipe's laws.

    make: gets settings of the loader as keyword arguments (batch_size, seed, shard, ids, format, last_batch), and returns a Loader over at
    least 8 samples, none of which is corrupt. It is called about 20 times.
    """

    def new(**changes: Any) -> Loader:
        return make(**{"ids": True, "format": "dict", "seed": 5, "last_batch": "partial", "shard": {"rank": 0, "world_size": 1}} | changes)

    with new(batch_size=3) as loader:
        count = len(loader.index)
        assert count >= _LEAST, f"check_loader needs {_LEAST} samples, and there are {count}"
        epochs = [_samples(loader) for _ in range(2)]
    for rule in (_every_sample_once, _draws_do_not_depend_on_batches, _iterations, _states, _ranks, _ends):
        rule(new, epochs, count)


def _every_sample_once(new: Make, epochs: list[_Samples], count: int) -> None:
    for epoch in epochs:
        assert sorted(epoch) == list(range(count)), "an epoch holds every sample once"
    for last_batch in ("partial", "drop", "pad"):
        with new(batch_size=3, last_batch=last_batch) as loader:
            sizes = [len(b["id"]) for b in loader]
            assert len(sizes) == len(loader), f"len() is the number of batches (last_batch: {last_batch})"
            assert min(sizes) > 0, "no batch is empty"


def _draws_do_not_depend_on_batches(new: Make, epochs: list[_Samples], count: int) -> None:
    for batch_size in (1, count):
        with new(batch_size=batch_size) as loader:
            _same(_samples(loader), epochs[0], f"with batches of {batch_size} a sample is what it is with batches of 3")


def _iterations(new: Make, epochs: list[_Samples], count: int) -> None:
    with new(batch_size=3) as loader:
        next(iter(loader))
        _same(_samples(loader), epochs[1], "after a break comes the whole next epoch")
        loader.sampler.set_epoch(0)
        _same(_samples(loader), epochs[0], "set_epoch() says which epoch comes")
        iterator = iter(loader)
        loader.sampler.set_epoch(1)
        _same(_samples(iterator), epochs[1], "set_epoch() counts also behind iter()")


def _states(new: Make, epochs: list[_Samples], count: int) -> None:
    states: list[tuple[list[int], dict[str, Any]]] = []
    with new(batch_size=3) as loader:
        seen: list[int] = []
        for batch in loader:
            seen += batch["id"].tolist()
            states.append((list(seen), json.loads(json.dumps(loader.state_dict()))))
    for delivered, state in (states[0], states[len(states) // 2]):
        for batch_size in (3, 2):
            with new(batch_size=batch_size) as loader:
                loader.load_state_dict(state)
                rest = {i: s for i, s in epochs[0].items() if i not in delivered}
                _same(_samples(loader), rest, f"a state after {len(delivered)} samples goes on with the rest (batches of {batch_size})")
                _same(_samples(loader), epochs[1], "and then with the next epoch")
    with new(batch_size=3) as loader:
        loader.load_state_dict(states[-1][1])
        _same(_samples(loader), epochs[1], "a state behind the last batch goes on with the next epoch")


def _ranks(new: Make, epochs: list[_Samples], count: int) -> None:
    for world_size in (2, 3):
        found: _Samples = {}
        steps = set()
        for rank in range(world_size):
            with new(batch_size=2, shard={"rank": rank, "world_size": world_size}) as loader:
                mine = _samples(loader)
                steps.add(len(loader))
            assert not mine.keys() & found.keys(), "no sample comes to two ranks"
            found |= mine
        assert len(steps) == 1, "all ranks have equal steps"
        _same(found, epochs[0], f"{world_size} ranks share an epoch out")


def _ends(new: Make, epochs: list[_Samples], count: int) -> None:
    loader = new(batch_size=3)
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


def _samples(batches: Iterable[Any]) -> _Samples:
    found: _Samples = {}
    for batch in batches:
        for id, label, image in zip(batch["id"].tolist(), batch["label"].tolist(), next(iter(batch.values())).cpu(), strict=True):
            assert id not in found, f"sample {id} came twice in an epoch"
            found[id] = label, image.clone()
    return found


def _same(found: _Samples, expected: _Samples, rule: str) -> None:
    lost, more = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    assert not (lost or more), f"{rule}: samples {_few(lost)} were lost, and {_few(more)} are too many"
    other = [i for i, (label, image) in found.items() if label != expected[i][0] or not torch.equal(image, expected[i][1])]
    assert not other, f"{rule}: samples {_few(sorted(other))} have other pixels or labels"


def _few(ids: list[int]) -> str:
    return str(list(itertools.islice(ids, 5))) + ("..." if len(ids) > 5 else "")
