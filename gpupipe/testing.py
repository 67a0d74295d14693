"""check_loader() tests the contract of a loader, for authors of engines, sources and steps.

Examples:
    >>> def test_my_source():
    ...     gpupipe.testing.check_loader(lambda **changes: gpupipe.load(CONFIG, **changes))
"""

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpupipe.errors import GpupipeError
from gpupipe.loader import Loader

Make = Callable[..., Loader]
_Sample = tuple[int, bytes]
"""The label of a sample, or -1 without labels, and a hash of its first field."""
_Samples = dict[int, _Sample]
"""Samples by id, in the order of delivery."""
_MIN_SAMPLES = 8
_MAX_CHECKED = 100
"""Most rules look only at about this many samples of an epoch, to save time."""
_BATCHES = 32
"""Batches per epoch, if the data set is large enough for batches of more than 3 samples."""


@dataclass(frozen=True)
class _Case:
    """The loaders under test, and the first two epochs that one of them delivered.

    Attributes:
        make: Creates a loader with the settings that it gets as keyword arguments.
        ids: The ids of the samples in the data set, ascending.
        size: Batch size.
        max_samples: How many samples of an epoch most rules look at; infinity for all.
        epochs: The samples of epochs 0 and 1.
    """

    make: Make
    ids: list[int]
    size: int
    max_samples: float
    epochs: list[_Samples]

    @property
    def count(self) -> int:
        """The number of samples in the data set."""
        return len(self.ids)

    def new(self, **changes: Any) -> Loader:
        return _new(self.make, **{"batch_size": self.size} | changes)

    def agree(self, batches: Iterable[Any], expected: _Samples, rule: str) -> None:
        """Raise AssertionError unless the batches hold the expected samples."""
        samples = _collect(batches, self.max_samples)
        if len(samples) >= self.max_samples:  # `expected` is in the order of delivery, too
            expected = dict(itertools.islice(expected.items(), len(samples)))
        lost, more = expected.keys() - samples.keys(), samples.keys() - expected.keys()
        message = f"samples {_few(lost)} were lost, and {_few(more)} are too many"
        assert not (lost or more), f"{rule}: {message}"
        other = {i for i, sample in samples.items() if sample != expected[i]}
        assert not other, f"{rule}: samples {_few(other)} have other pixels or labels"


def check_loader(make: Make) -> None:
    """Check that loaders keep the contract of gpupipe.

    The rules: every sample comes once per epoch; draws do not depend on the batch size; len() is
    exact; iterations, set_epoch(), state_dict() and close() work as documented; the ranks share out
    the samples of an epoch; with `repeats`, each repeat of a sample gets different draws. The check
    takes as long as about twelve epochs, or longer if there are at most 100 samples.

    Args:
        make: Creates a Loader with the settings that it gets as keyword arguments: batch_size,
            seed, shard, ids, format, last_batch, repeats. It is called about 25 times. The data set
            must have at least 8 samples, all of them readable. Without `repeats`, an epoch must
            have every sample once, so the config must not set weights, epoch_size or subset.

    Raises:
        AssertionError: If a rule is broken; the message names the rule.
    """
    with _new(make, batch_size=3) as loader:
        count = len(loader.index)
        ids = loader.index.ids_of(np.arange(count)).tolist()
        assert not loader.mixer.stage.entries, (
            "check_loader needs a config without 'batch:': its steps depend on the batch"
        )
    assert count >= _MIN_SAMPLES, (
        f"check_loader needs {_MIN_SAMPLES} samples, and there are {count}"
    )
    size = max(3, count // _BATCHES)
    with _new(make, batch_size=size) as loader:
        epochs = [_collect(loader) for _ in range(2)]
    case = _Case(make, ids, size, math.inf if count <= _MAX_CHECKED else _MAX_CHECKED, epochs)
    for rule in (
        _every_sample_once,
        _draws_do_not_depend_on_batches,
        _iterations,
        _states,
        _ranks,
        _repeats,
        _ends,
    ):
        rule(case)


def _new(make: Make, **changes: Any) -> Loader:
    defaults = {"ids": True, "format": "dict", "seed": 5, "last_batch": "partial"}
    return make(**defaults | {"shard": {"rank": 0, "world_size": 1}} | changes)


def _every_sample_once(case: _Case) -> None:
    for epoch in case.epochs:
        assert sorted(epoch) == case.ids, "an epoch holds every sample once"
    for last_batch in ("partial", "drop", "pad"):
        with case.new(last_batch=last_batch) as loader:
            sizes = [len(b["id"]) for b in loader]
            rule = f"len() is the number of batches (last_batch: {last_batch})"
            assert len(sizes) == len(loader), rule
            assert min(sizes) > 0, "no batch is empty"


def _draws_do_not_depend_on_batches(case: _Case) -> None:
    for size in (1, min(case.count, 2 * _MAX_CHECKED)):
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
        case.agree(iterator, case.epochs[1], "set_epoch() counts also after iter()")


def _states(case: _Case) -> None:
    states: list[tuple[set[int], dict[str, Any]]] = []
    with case.new() as loader:
        seen: set[int] = set()
        for batch in loader:
            seen.update(batch["id"].tolist())
            states.append((set(seen), json.loads(json.dumps(loader.state_dict()))))
    late = max(len(states) // 2, len(states) - 1 - _MAX_CHECKED // case.size)
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
        rule = "a state after the last batch goes on with the next epoch"
        case.agree(loader, case.epochs[1], rule)


def _ranks(case: _Case) -> None:
    for world_size in (2, 3):
        samples: _Samples = {}
        steps = set()
        for rank in range(world_size):
            shard = {"rank": rank, "world_size": world_size}
            with case.new(batch_size=case.size - 1, shard=shard) as loader:
                samples_of_rank = _collect(loader)
                steps.add(len(loader))
            shared = samples_of_rank.keys() & samples.keys()
            assert not shared, "no sample comes to two ranks"
            samples |= samples_of_rank
        assert len(steps) == 1, "all ranks have equal steps"
        assert samples == case.epochs[0], f"{world_size} ranks share an epoch out"


def _repeats(case: _Case) -> None:
    size = case.size | 1  # An odd batch separates the repeats of a sample.
    states: list[dict[str, Any]] = []
    with case.new(repeats=2, batch_size=size) as loader:
        samples = list(_iter_samples(_record_states(loader, states)))
        has_draws = any(entry.step.num_uniforms for entry in loader.config.pipeline.entries)
    times = Counter(i for i, _ in samples)
    ones = sum(n == 1 for n in times.values())
    assert len(samples) == case.count and ones == case.count % 2 and max(times.values()) == 2, (
        "with repeats: 2 an epoch has as many samples, and each that comes, comes twice"
    )
    firsts = dict(reversed(samples))
    other = {i for i, sample in firsts.items() if sample != case.epochs[0][i]}
    assert not other, f"samples {_few(other)} differ from what they are without repeats"
    assert not has_draws or len(set(samples)) > len(times), (
        "a sample that comes again has other draws"
    )
    with case.new(repeats=2, batch_size=size) as loader:
        loader.load_state_dict(states[0])
        rest = list(_iter_samples(loader, case.max_samples))
    min_count = min(case.max_samples, len(samples) - size)
    assert rest == samples[size:][: max(len(rest), int(min_count))], (
        "a state between two repeats of a sample goes on with the second"
    )
    shared: Counter[tuple[int, _Sample]] = Counter()
    for rank in range(2):
        with case.new(repeats=2, shard={"rank": rank, "world_size": 2}) as loader:
            shared.update(_iter_samples(loader))
    assert shared == Counter(samples), "2 ranks share the repeats of an epoch out"


def _record_states(loader: Loader, states: list[dict[str, Any]]) -> Iterator[Any]:
    """Yield the batches, and append the loader's state after each batch to `states`."""
    for batch in loader:
        states.append(json.loads(json.dumps(loader.state_dict())))
        yield batch


def _ends(case: _Case) -> None:
    loader = case.new()
    old = iter(loader)
    next(old)
    next(iter(loader))
    _check_raises(lambda: next(old), "an older iteration does not go on beside a newer one")
    loader.close()
    loader.close()
    _check_raises(lambda: iter(loader), "a closed loader refuses to iterate")


def _check_raises(call: Callable[[], Any], rule: str) -> None:
    """Raise AssertionError with the rule unless the call raises GpupipeError."""
    try:
        call()
    except GpupipeError:
        return
    raise AssertionError(rule)


def _collect(batches: Iterable[Any], max_samples: float = math.inf) -> _Samples:
    """Return the samples of the batches by id; stop after the batch that reaches `max_samples`."""
    samples: _Samples = {}
    for id, sample in _iter_samples(batches, max_samples):
        assert id not in samples, f"sample {id} came twice in an epoch"
        samples[id] = sample
    return samples


def _iter_samples(
    batches: Iterable[Any], max_samples: float = math.inf
) -> Iterator[tuple[int, _Sample]]:
    """Yield each id and sample of the batches; stop after the batch that reaches `max_samples`."""
    count = 0
    for batch in batches:
        images = next(iter(batch.values())).cpu()
        ids = batch["id"].tolist()
        labels = batch["label"].tolist() if "label" in batch else [-1] * len(ids)
        for id, label, image in zip(ids, labels, images, strict=True):
            yield id, (label, _hash(image))
        count += len(ids)
        if count >= max_samples:
            return


def _hash(array: torch.Tensor) -> bytes:
    content = array.contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(content.data, digest_size=16).digest()


def _few(ids: Iterable[int]) -> str:
    first = list(itertools.islice(sorted(ids), 6))
    return f"{first[:5]}{'...' if len(first) > 5 else ''}"
