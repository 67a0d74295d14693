"""gpupipe's Ray engine against its local engine, and against Ray Data with torchvision, on the same
cores of one machine.

    # about 8 minutes, with nothing beside it; writes benchmarks/results/ray.json
    python benchmarks/ray_engine.py
    python benchmarks/ray_engine.py --quick  # a check that it runs
    # one contestant, one process, one line of JSON
    python benchmarks/ray_engine.py --one "ray, 1 worker"

All contestants load the workload lfw-affine: 250x250 JPEGs, a random affine transformation, batches
of 256 as float32. Every process, Ray's own included, is pinned to the same cores.

local: gpupipe.load() in this process, with as many threads as cores.
ray, 1 worker; ray, 2 workers: engine ray with ship uint8; the workers share the cores.
Ray Data: read_images().map_batches() with torchvision, read with iter_batches(). It too sends
uint8, and this process makes float32 of it.
ray, uint8: as 1 worker, with a pipeline that ends in uint8, so that this process only receives.
What its main thread needs for a byte says how busy it is at 500 MB/s.

Scaling over several machines is not measured here.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import baselines
import harness
import round_statistics

WORKLOAD = baselines.WORKLOADS["lfw-affine"]
RAY = {"ray, 1 worker": 1, "ray, 2 workers": 2}
CONTESTANTS = ("local", *RAY, "Ray Data", "ray, uint8")
_RATE = 500e6
_STORE = 2 * 10**9
_WARM_SECONDS = 2.0
_DEGREES, _SHIFT, _SCALES = 5, (0.1, 0.1), (0.5, 2.0)


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments)))
        return
    baselines.images_root(WORKLOAD, arguments.data, arguments.images)
    size = ["--seconds", str(arguments.seconds), "--images", str(arguments.images)]

    def run(contestant: str) -> dict[str, Any]:
        return harness.fresh(__file__, "--one", contestant, *size, *harness.passed_on(arguments))

    rounds = harness.interleaved(run, CONTESTANTS, arguments.rounds, "lfw-affine")
    result = summarise(rounds)
    path = harness.write("ray", result, arguments)
    round_statistics.print_table(rounds)
    for title, ratio in result["ratios"].items():
        round_statistics.print_ratio(title, ratio)
    round_statistics.print_goals(result["goals"])
    print(result["remark"])
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=4, seconds=5.0)
    harness.add_number(parser, "--images", 2000, "most images")
    parser.add_argument("--one", choices=CONTESTANTS, help="run one contestant here")
    return harness.parsed(parser, images=512)


def summarise(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The rounds, the ratios of neighbours in a round, and each goal with its verdict."""
    ratios = {
        f"{name} / local": round_statistics.ratio(rounds[name], rounds["local"]) for name in RAY
    }
    ratios["ray, 1 worker / Ray Data"] = round_statistics.ratio(
        rounds["ray, 1 worker"], rounds["Ray Data"]
    )
    busy = statistics.median(r["main_thread_share_at_500_mb"] for r in rounds["ray, uint8"])
    spilled = max(r["spilled_bytes"] for name in rounds if name != "local" for r in rounds[name])
    goals = [
        *(
            round_statistics.goal(f"{n} / local", ratios[f"{n} / local"]["median"], 0.85)
            for n in RAY
        ),
        round_statistics.goal(
            "ray, 1 worker / Ray Data", ratios["ray, 1 worker / Ray Data"]["median"], 3.0
        ),
        round_statistics.goal("main thread's share of a core at 500 MB/s", busy, 0.1, at_most=True),
        round_statistics.goal("bytes spilled", spilled, 0, at_most=True),
    ]
    return {
        "disturbed": round_statistics.disturbed(rounds),
        "remark": "one machine: scaling over several machines was not measured",
        "rounds": rounds,
        "ratios": ratios,
        "goals": goals,
    }


# --- one contestant, in this process


def one(contestant: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a contestant does with the workload."""
    warnings.simplefilter("ignore")
    root = baselines.images_root(WORKLOAD, arguments.data, arguments.images)
    epochs = _epochs(contestant, root)
    return measure(epochs, arguments.seconds)


def _epochs(contestant: str, root: Path) -> Callable[[], Iterator[tuple[int, int]]]:
    """What makes an epoch: the images and the bytes of each batch."""
    if contestant == "local":
        return _loader(root, threads=harness.threads())
    _start_ray()
    if contestant == "Ray Data":
        return lambda: _ray_data_batches(root)
    if contestant == "ray, uint8":
        return _loader(root, pipeline=_uint8_pipeline(), **_options(1))
    return _loader(root, **_options(RAY[contestant]))


def _config(root: Path, pipeline: Any = WORKLOAD.pipeline) -> dict[str, Any]:
    loader = {"batch_size": WORKLOAD.batch_size, "shuffle": WORKLOAD.shuffle, "device": "cpu"}
    data = {"source": "folder", "root": str(root)}
    return {"data": data, "pipeline": pipeline, "loader": loader}


def _options(workers: int) -> dict[str, Any]:
    cpus = max(1, harness.threads() // workers)
    return {"engine": "ray", "ray": {"workers": workers, "cpus": cpus, "ship": "uint8"}}


def _uint8_pipeline() -> list[Any]:
    """The workload without its last step, to_dtype."""
    affine = {
        "degrees": _DEGREES,
        "translate": list(_SHIFT),
        "scale": list(_SCALES),
        "interpolation": "bilinear",
    }
    return [{"decode": {"mode": "rgb"}}, {"random_affine": affine}]


def _loader(
    root: Path, pipeline: Any = WORKLOAD.pipeline, **options: Any
) -> Callable[[], Iterator[tuple[int, int]]]:
    import gpupipe.loader

    loader = gpupipe.load(_config(root, pipeline), **options)

    def epoch() -> Iterator[tuple[int, int]]:
        for batch in loader:
            image = batch["image"]
            float(image[-1, -1, -1, -1])
            yield len(image), image.nbytes

    return epoch


def _start_ray() -> None:
    """Start a Ray of this machine's cores that are allowed; its processes inherit them."""
    import ray

    ray.init(
        address="local",
        num_cpus=harness.threads(),
        object_store_memory=_STORE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False


def _ray_data_batches(root: Path) -> Iterator[tuple[int, int]]:
    """The same work as a user of Ray Data and torchvision writes it."""
    import ray.data
    import torch

    samples = ray.data.read_images(
        str(root), include_paths=True, mode="RGB", shuffle="files"
    ).map_batches(_transform, batch_size=64)
    for batch in samples.iter_batches(batch_size=WORKLOAD.batch_size):
        image = torch.from_numpy(batch["image"]).to(torch.float32).mul_(1 / 255)
        float(image[-1, -1, -1, -1])
        yield len(image), image.nbytes


def _transform(batch: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    import torch
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    affine = v2.RandomAffine(
        _DEGREES,
        translate=_SHIFT,
        scale=_SCALES,
        interpolation=v2.InterpolationMode.BILINEAR,
    )
    images = [affine(torch.from_numpy(image).permute(2, 0, 1)) for image in batch["image"]]
    classes = [Path(path).parent.name for path in batch["path"]]
    return {"image": torch.stack(images).numpy(), "label": np.array(classes)}


def measure(epoch: Callable[[], Iterator[tuple[int, int]]], seconds: float) -> dict[str, Any]:
    """Warm up, then whole epochs for at least `seconds`."""
    from gpupipe.bench.machine import Load
    from gpupipe.bench.memory import PeakMemory

    with PeakMemory() as memory:
        started = time.perf_counter()
        first = 0.0
        while not first or time.perf_counter() - started < first + _WARM_SECONDS:
            for _ in epoch():
                first = first or time.perf_counter() - started
        images, size, passes = 0, 0, []
        started, thread = time.perf_counter(), time.thread_time()
        with Load() as load:
            while time.perf_counter() - started < seconds:
                begun, before = time.perf_counter(), images
                for count, nbytes in epoch():
                    images, size = images + count, size + nbytes
                passes.append((images - before) / (time.perf_counter() - begun))
            wall, thread = time.perf_counter() - started, time.thread_time() - thread
    return {
        "images_per_second": images / wall,
        "cpu_seconds_per_1000": 1000 * load.cpu_seconds / images,
        "first_batch_seconds": first,
        "peak_memory_mib": memory.bytes / 2**20,
        "others_cores": load.others,
        "images": images,
        "mb_per_second": size / wall / 1e6,
        "main_thread_share_at_500_mb": _RATE * thread / size,
        "spilled_bytes": _spilled_bytes(),
        "seconds": wall,
        "passes": passes,
    }


def _spilled_bytes() -> int:
    """What Ray has written from its object store to a disk, by its own counters."""
    import sys

    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return 0
    from gpupipe.engines.ray.status import read_object_store

    return read_object_store().spilled


if __name__ == "__main__":
    main()
