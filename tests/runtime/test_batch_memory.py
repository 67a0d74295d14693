"""Memory that is used again only when the last tensor over it is gone, whoever holds it."""

import copy
import gc
import io
import itertools
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.runtime.batch_memory import BatchMemory
from helpers.forks import in_fork
from helpers.loaders import loading

SHAPE = (4, 3, 8, 8)
HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the tensor": lambda tensor: tensor,
    "a slice": lambda tensor: tensor[1:3],
    "one pixel": lambda tensor: tensor[0, 0, 0, 0],
    "a transposed view": lambda tensor: tensor.permute(0, 2, 3, 1),
    "another dtype": lambda tensor: tensor.view(torch.int32),
    "a NumPy array": lambda tensor: tensor.numpy(),
    "a slice of a NumPy array": lambda tensor: tensor.numpy()[2][1:, ::2],
    "the storage": lambda tensor: tensor.untyped_storage(),
    "an alias": lambda tensor: tensor.detach(),
    "a capsule": torch.utils.dlpack.to_dlpack,
    "a reader of its memory": lambda tensor: memoryview(tensor.numpy()),
    "a shallow copy": copy.copy,
    "autograd": lambda tensor: tensor * torch.ones((), requires_grad=True),
    "a list of rows": lambda tensor: list(tensor)[3:],
}


def filled(memory: BatchMemory, number: float) -> torch.Tensor:
    tensor = memory.allocate(SHAPE, torch.float32)
    return tensor.fill_(number)


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_memory_comes_back_when_its_tensor_dies() -> None:
    memory = BatchMemory(2)
    first = filled(memory, 1.0)
    place = address(first)
    assert memory.count_free() == 0
    del first
    assert memory.count_free() == 1
    assert address(memory.allocate(SHAPE, torch.float32)) == place


@pytest.mark.parametrize("count", [1, 1000, 3 << 20])
def test_a_batch_begins_with_a_cache_line(count: int) -> None:
    memory = BatchMemory(0)
    tensors = [memory.allocate((count,), torch.float32).fill_(1.0) for _ in range(5)]
    assert [address(tensor) % 64 for tensor in tensors] == [0] * 5


@pytest.mark.parametrize("name", HOLDERS)
def test_nothing_is_used_again_while_it_is_held(name: str) -> None:
    memory = BatchMemory(8)
    tensor = filled(memory, 7.0)
    place = address(tensor)
    holder = HOLDERS[name](tensor)
    del tensor
    gc.collect()
    others = [filled(memory, float(n)) for n in range(3)]
    assert place not in {address(other) for other in others}
    del others, holder
    gc.collect()
    assert memory.count_free() == 4, "and then it is"


def test_views_die_in_any_order() -> None:
    for order in itertools.permutations(range(4)):
        memory = BatchMemory(8)
        base = filled(memory, 3.0)
        held: list[Any] = [base, base[1:], base.numpy(), base.view(-1)[5:].numpy()[::2]]
        del base
        for n in order:
            assert memory.count_free() == 0
            assert all(float(np.asarray(h).max()) == 3.0 for h in held if h is not None)
            held[n] = None
        assert memory.count_free() == 1


def test_a_cycle_gives_its_memory_back_when_it_is_collected() -> None:
    memory = BatchMemory(2)
    cycle: list[Any] = [filled(memory, 1.0)]
    cycle.append(cycle)
    del cycle
    assert memory.count_free() == 0
    gc.collect()
    assert memory.count_free() == 1


def test_no_more_is_kept_than_the_spare_blocks() -> None:
    memory = BatchMemory(2)
    held = [filled(memory, float(n)) for n in range(5)]
    assert [float(t.mean()) for t in held] == [0.0, 1.0, 2.0, 3.0, 4.0]
    held.clear()
    assert memory.count_free() == 2
    last = filled(memory, 1.0)
    memory.release()
    del last
    assert memory.count_free() == 0


def test_blocks_that_waited_longest_are_dropped_first() -> None:
    """Batches of many sizes, one after another, as a loader makes of samples of many sizes."""
    memory = BatchMemory(3)
    for size in (810, 10, 30, 90, 270, 30):
        memory.allocate((size,), torch.uint8)
    assert memory.count_free() == 3
    places = [address(memory.allocate((size,), torch.uint8)) for size in (30, 90, 270)]
    assert memory.count_free() == 3, "each was there"
    held = [memory.allocate((size,), torch.uint8) for size in (270, 90, 30)]
    assert [address(tensor) for tensor in held] == places[::-1]
    assert memory.count_free() == 0


def test_a_smaller_batch_takes_a_block_of_up_to_twice_its_size() -> None:
    """As the last batch of an epoch does."""
    memory = BatchMemory(3)
    held = [memory.allocate((size,), torch.uint8) for size in (41, 30, 40)]
    places = [address(tensor) for tensor in held]
    held.clear()
    smaller = memory.allocate((4, 5), torch.uint8)
    assert smaller.shape == (4, 5)
    assert address(smaller) == places[1], "the smallest that fits"
    assert address(memory.allocate((20,), torch.uint8)) == places[2], "twice its size"
    assert memory.count_free() == 2
    assert memory.allocate((20,), torch.uint8).fill_(7).sum() == 140
    one, other = memory.allocate((20,), torch.uint8), memory.allocate((20,), torch.uint8)
    assert address(one) == places[2]
    assert address(other) not in places, "41 bytes are too many for 20"
    del smaller
    assert address(memory.allocate((30,), torch.uint8)) == places[1], "whole again"


def test_tensors_die_on_other_threads() -> None:
    memory = BatchMemory(64)
    wrong: list[float] = []

    def work(number: int) -> None:
        held: list[tuple[float, torch.Tensor]] = []
        for n in range(200):
            value = float(1000 * number + n)
            held.append((value, filled(memory, value)[1:]))
            if len(held) > number + 1:
                expected, tensor = held.pop((7 * n) % len(held))
                if not bool((tensor == expected).all()):
                    wrong.append(expected)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert memory.count_free() <= 64


def test_a_forked_child_has_its_own_pool() -> None:
    memory = BatchMemory(4)
    tensor, other = filled(memory, 5.0), filled(memory, 6.0)

    def child() -> str:
        nonlocal other
        del other
        mine = filled(memory, 9.0)
        return f"{float(tensor.mean())} {float(mine.mean())} {memory.count_free()}"

    assert in_fork(child) == "5.0 9.0 0"
    assert memory.count_free() == 0
    assert float(other.mean()) == 6.0


@pytest.mark.parametrize("way", ["pickle", "torch.save", "deepcopy", "clone"])
def test_copies_do_not_hold_the_memory(way: str) -> None:
    memory = BatchMemory(4)
    tensor = filled(memory, 5.0)
    if way == "torch.save":
        file = io.BytesIO()
        torch.save(tensor, file)
        file.seek(0)
        copied = torch.load(file)
    elif way == "pickle":
        copied = pickle.loads(pickle.dumps(tensor))
    else:
        copied = copy.deepcopy(tensor) if way == "deepcopy" else tensor.clone()
    del tensor
    assert memory.count_free() == 1
    filled(memory, 1.0)
    assert bool((copied == 5.0).all())


def test_shared_memory_leaves_the_pool() -> None:
    memory = BatchMemory(4)
    tensor = filled(memory, 5.0).share_memory_()
    assert memory.count_free() == 1, "torch has moved the pixels"
    filled(memory, 1.0)
    assert bool((tensor == 5.0).all())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.bool, torch.int64])
def test_every_dtype_and_an_empty_shape(dtype: torch.dtype) -> None:
    memory = BatchMemory(2)
    tensor = memory.allocate((2, 5), dtype)
    assert (tensor.dtype, tuple(tensor.shape), tensor.is_contiguous()) == (dtype, (2, 5), True)
    assert memory.allocate((2, 0), dtype).shape == (2, 0)


load = loading(["decode", {"random_crop": {"size": 64}}], engine="cpu", threads=2, batch_size=8)


def test_batches_that_are_held_keep_their_pixels(faces: Path) -> None:
    """Some are dropped at once, some are kept as a row or as an array, for three epochs."""
    with load(faces, shuffle=False) as loader:
        held: list[tuple[int, int, Any, Any]] = []
        for epoch in range(3):
            for n, batch in enumerate(loader):
                images = batch["image"]
                part = (images, images[2:5], images.numpy()[3:], images[-1])[n % 4]
                if (epoch + n) % 3:
                    held.append((epoch, n, part, np.asarray(part).copy()))
                del batch, images, part
        assert len(held) > 10
        assert all(np.array_equal(np.asarray(part), kept) for _, _, part, kept in held)
    assert all(np.array_equal(np.asarray(part), kept) for _, _, part, kept in held), "after close"


def test_an_epoch_whose_batches_are_dropped_uses_few_blocks(faces: Path) -> None:
    with load(faces, prefetch=2) as loader:
        places = {b["image"].untyped_storage().data_ptr() for _ in range(4) for b in loader}
    assert len(places) < 10, "of 32 batches"


def test_results_have_the_order_of_strides_of_their_model() -> None:
    memory = BatchMemory(2)
    images = torch.zeros(2, 3, 4, 5)
    for model in (images, images.to(memory_format=torch.channels_last), images[:, :, 1:]):
        result = memory.allocate_like(model)
        assert (result.shape, result.dtype) == (model.shape, model.dtype)
        assert result.stride() == torch.empty_like(model).stride()
