"""A batch is used on the consumer's stream, and dropped while kernels that read it are still
queued: its memory lasts until they have run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from helpers.either_device import TYPE
from helpers.loaders import load
from helpers.step_examples import CASES, drawn, givens
from helpers.sync_waits import waits_of_this_thread

STEPS: list[Any] = [
    "decode",
    {"resize": {"size": [96, 96]}},
    "random_horizontal_flip",
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2]}},
]
EPOCHS = 10


@contextmanager
def loader(engine: str, faces: Path, ids: bool = False) -> Iterator[gpupipe.Loader]:
    options = {"batch_size": 4, "seed": 5, "prefetch": 2}
    if engine != "remote":
        on_gpu = {"engine": engine, "device": "gpu:0", "workers": 2, "hw_decoder_load": 0.0}
        with load(faces, STEPS, **on_gpu, **options, ids=ids) as made:
            yield made
        return
    pytest.importorskip("zmq", reason="the tests of the server need pyzmq: pip install pyzmq")
    pytest.importorskip(
        "msgspec", reason="the tests of the server need msgspec: pip install msgspec"
    )
    from helpers.served import serving

    config = {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": STEPS,
        "loader": {**options, "engine": "dali", "device": "cpu", "threads": 2},
    }
    with (
        serving(config, hwm=4, ship="uint8") as server,
        gpupipe.connect(server.address, device="gpu:0", hwm=4, ids=ids) as made,
    ):
        yield made


@pytest.mark.parametrize("engine", ["dali", "cpu", "dataloader", "remote"])
def test_a_batch_that_is_dropped_is_not_overwritten_by_the_next(engine: str, faces: Path) -> None:
    with loader(engine, faces) as made:
        expected = [float(batch["image"].double().sum()) for _ in range(EPOCHS) for batch in made]
    busy = torch.randn(4096, 4096, device="cuda")
    stream = torch.cuda.Stream()
    found: list[torch.Tensor] = []
    with loader(engine, faces) as made, torch.cuda.stream(stream):
        for _ in range(EPOCHS):
            for batch in made:
                for _ in range(8):  # milliseconds of work, behind which the sum waits
                    torch.mm(busy, busy)
                found.append(batch["image"].double().sum())
                del batch
    stream.synchronize()
    assert [float(total) for total in found] == expected


@pytest.mark.parametrize("engine", ["dali", "cpu", "dataloader", "remote"])
@pytest.mark.parametrize("ids", [False, True])
def test_the_thread_that_trains_does_not_wait_for_the_gpu(
    engine: str, ids: bool, faces: Path
) -> None:
    with loader(engine, faces, ids) as made:
        batches = iter(made)
        next(batches)
        with waits_of_this_thread() as waits:
            rest = list(batches)
        assert not waits
        assert all({t.device.type for t in batch.values()} == {"cuda"} for batch in rest)
        assert all(("id" in batch) == ids for batch in rest)


@pytest.mark.either_device
@pytest.mark.parametrize("name", list(dict.fromkeys(name for name, _ in CASES)))
def test_the_torch_lowering_of_a_step_makes_the_same_on_a_gpu(name: str) -> None:
    every = [options for own, options in CASES if own == name]
    for options, given in ((o, given) for o in every for given in givens(name, o)):
        step, p = drawn(name, options, given)
        size = (given.channels, given.height, given.width)
        image = torch.randint(
            0, 256, size, generator=torch.Generator().manual_seed(3), dtype=torch.uint8
        )
        image = image if given.dtype == "uint8" else image / 255
        expected, found = step.torch(image, p), step.torch(image.to(TYPE), p)
        assert found.device.type == TYPE
        assert found.dtype == expected.dtype
        difference = (found.cpu().double() - expected.double()).abs()
        if name in ("random_affine", "random_rotation"):  # a pixel on an edge may be another one
            assert float((difference > 1).double().mean()) < 0.02
        elif expected.is_floating_point():
            relative = 1e-3 if expected.dtype == torch.float16 else 1e-5
            assert float(difference.max()) <= relative * max(1.0, float(expected.abs().max()))
        else:
            assert float(difference.max()) <= (0 if name == "to_dtype" else 1)
