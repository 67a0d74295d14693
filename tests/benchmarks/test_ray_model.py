"""The arithmetic of the model in docs/ray.md."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_cores_and_bytes() -> None:
    from ray_model import Demand, supply

    demand = Demand(
        nodes=2,
        gpus=4,
        cores=8,
        cpu_cores=16,
        gpu_rate=1000,
        core_rate=250,
        image_bytes=1000,
        batch_size=100,
        worker_cpus=2,
    )
    found = supply(demand)
    assert found.cores_per_gpu == 4
    assert found.cpu_nodes == 1, "2 x 4 x 4 cores are needed, and 2 x 8 are there"
    assert found.gpu_bytes == 1e6
    assert found.into_gpu_node == 4e6 / 2
    assert found.into_gpu_node_spread == pytest.approx(4e6 * 2 / 3)
    assert found.out_of_cpu_node == 16 * 250 * 1000
    assert found.trainer_store == 4 * (2 * 6 + 4) * 100 * 1000
    assert found.worker_store == 8 * 6 * 100 * 1000
    assert found.tasks == 80
    assert found.into_gpu_node * demand.nodes == found.out_of_cpu_node


def test_the_page_has_the_table_that_the_script_prints() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "ray_model.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed in (ROOT / "docs" / "ray.md").read_text()
