"""How many cores, how much network and how much memory a Ray cluster needs to feed its GPUs.

    python benchmarks/ray_model.py                      # the table in docs/ray.md
    python benchmarks/ray_model.py --gpus 8 --gpu-rate 5000 --core-rate 900

It is arithmetic, with no measurement over several machines behind it:

    cores a GPU needs        = gpu rate / core rate
    bytes a second of a GPU  = gpu rate x bytes of an image
    missing cores            = GPUs x cores a GPU needs - cores of the GPU nodes
    extra CPU nodes          = missing cores / cores of a CPU node
    into a GPU node
      placement: local_first = bytes a second of its GPUs x missing cores / all cores needed
      placement: spread      = bytes a second of its GPUs x (1 - 1 / all nodes)
    out of a CPU node        = its missing cores x core rate x bytes of an image
    window                   = workers of a GPU x (2 x prefetch + 2), at least 10
    object store, trainer    = (window + prefetch + 2) x batch x bytes of an image, for each GPU
    object store, worker     = (2 x prefetch + 2) x batch x bytes of an image, for each worker
    tasks a second           = gpu rate / batch, for each trainer

The core rate is what one core makes, less what Ray takes. Measure it on your own data:
`gpupipe compare CONFIG --ray` on one machine, its images a second divided by the cores.
"""

import argparse
import math
from dataclasses import dataclass

PREFETCH, MIN_WINDOW = 2, 10
TASKS_OF_WORKER = 2 * PREFETCH + 2


@dataclass(frozen=True)
class Demand:
    """What is known before the arithmetic.

    nodes: GPU nodes. gpus: GPUs of each. cores: cores of each that can make batches.
    cpu_cores: cores of an extra CPU node. gpu_rate: images a second that a GPU consumes.
    core_rate: images a second that a core makes. image_bytes: bytes of an image as it is sent.
    """

    nodes: int
    gpus: int
    cores: int
    cpu_cores: int
    gpu_rate: float
    core_rate: float
    image_bytes: int
    batch_size: int
    worker_cpus: int


@dataclass(frozen=True)
class Supply:
    """What the cluster needs. Rates are in bytes a second."""

    cores_per_gpu: float
    cpu_nodes: int
    gpu_bytes: float
    into_gpu_node: float
    into_gpu_node_spread: float
    out_of_cpu_node: float
    trainer_store: float
    worker_store: float
    tasks: float


def supply(demand: Demand) -> Supply:
    """Do the arithmetic."""
    d = demand
    cores_per_gpu = d.gpu_rate / d.core_rate
    wanted = d.nodes * d.gpus * cores_per_gpu
    missing = max(0.0, wanted - d.nodes * d.cores)
    gpu_bytes = d.gpu_rate * d.image_bytes
    batch = d.batch_size * d.image_bytes
    workers = math.ceil(cores_per_gpu / d.worker_cpus)
    window = max(MIN_WINDOW, workers * TASKS_OF_WORKER)
    cpu_nodes = math.ceil(missing / d.cpu_cores)
    elsewhere = missing / wanted
    return Supply(
        cores_per_gpu,
        cpu_nodes,
        gpu_bytes,
        d.gpus * gpu_bytes * elsewhere,
        d.gpus * gpu_bytes * (1 - 1 / (d.nodes + cpu_nodes)),
        missing / cpu_nodes * d.core_rate * d.image_bytes if cpu_nodes else 0.0,
        d.gpus * (window + PREFETCH + 2) * batch,
        d.cpu_cores // d.worker_cpus * TASKS_OF_WORKER * batch,
        d.nodes * d.gpus * d.gpu_rate / d.batch_size,
    )


def table(demands: list[Demand]) -> list[str]:
    """The table of docs/ray.md, in Markdown."""
    results = [supply(demand) for demand in demands]
    rows = [
        ("cores a GPU needs", [f"{s.cores_per_gpu:.1f}" for s in results]),
        ("extra CPU nodes", [f"{s.cpu_nodes:,}" for s in results]),
        ("bytes a second of a GPU", [_rate(s.gpu_bytes) for s in results]),
        ("into a GPU node, local_first", [_rate(s.into_gpu_node) for s in results]),
        ("into a GPU node, spread", [_rate(s.into_gpu_node_spread) for s in results]),
        ("out of a CPU node", [_rate(s.out_of_cpu_node) for s in results]),
        ("object store of a GPU node, at most", [_size(s.trainer_store) for s in results]),
        ("object store of a CPU node, at most", [_size(s.worker_store) for s in results]),
        ("tasks a second, whole cluster", [f"{s.tasks:,.0f}" for s in results]),
    ]
    heads = [f"{d.nodes} GPU node{'s' * (d.nodes > 1)}" for d in demands]
    lines = ["| | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(heads)]
    return lines + [f"| {name} | " + " | ".join(values) + " |" for name, values in rows]


def _rate(value: float) -> str:
    return f"{value / 1e6:,.0f} MB/s ({8 * value / 1e9:.1f} Gbit/s)"


def _size(value: float) -> str:
    return f"{value / 1e9:.1f} GB"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    whole = {
        "gpus": (8, "GPUs of a GPU node"),
        "cores": (32, "cores of a GPU node that can make batches"),
        "cpu-cores": (64, "cores of an extra CPU node"),
        "height": (224, "of an image as it is sent"),
        "width": (224, "of an image as it is sent"),
        "batch-size": (256, "images of a batch"),
        "worker-cpus": (2, "loader.ray.cpus"),
    }
    for name, (default, text) in whole.items():
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{text} (default: {default})"
        )
    parser.add_argument(
        "--gpu-rate", type=float, default=3000, help="images/s a GPU consumes (default: 3000)"
    )
    parser.add_argument(
        "--core-rate", type=float, default=620, help="images/s a core makes (default: 620)"
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8, 64], help="GPU nodes")
    given = parser.parse_args()
    demands = [
        Demand(
            nodes,
            given.gpus,
            given.cores,
            given.cpu_cores,
            given.gpu_rate,
            given.core_rate,
            3 * given.height * given.width,
            given.batch_size,
            given.worker_cpus,
        )
        for nodes in given.nodes
    ]
    print("\n".join(table(demands)))


if __name__ == "__main__":
    main()
