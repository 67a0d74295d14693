"""loader.set_affinity: DALI's threads run where they are bound to, or it is said why they cannot
be.
"""

import os
from pathlib import Path

import pytest

import gpupipe
from gpupipe.engines.dali.checks import check_affinity
from helpers import forked_python

CORES = sorted(os.sched_getaffinity(0))
THREADS = """
import os, sys
import gpupipe

config = {"data": {"source": "folder", "root": sys.argv[1]}, "pipeline": "affine"}
options = dict(threads=2, batch_size=16, set_affinity=sys.argv[2] == "bound")
with gpupipe.load(config, engine="dali", device="cpu", **options) as loader:
    for batch in loader:
        assert batch["image"].shape[1:] == (3, 250, 250)
    for thread in os.listdir("/proc/self/task"):
        name = open(f"/proc/self/task/{thread}/comm").read().strip()
        if name.startswith("[DALI][TP"):
            print(name[9], *sorted(os.sched_getaffinity(int(thread))))
"""


def threads(root: Path, bound: bool, mask: str | None = None) -> set[str]:
    """Number and cores of each of DALI's worker threads, behind an epoch."""
    env = {k: v for k, v in os.environ.items() if k != "DALI_AFFINITY_MASK"} | (
        {} if mask is None else {"DALI_AFFINITY_MASK": mask}
    )
    done = forked_python.run(["-c", THREADS, root, "bound" if bound else "free"], env=env)
    assert done.returncode == 0, done.stderr
    assert "affinity" not in done.stderr
    return set(done.stdout.splitlines())


def test_threads_are_bound_to_the_cores_of_the_mask(faces: Path) -> None:
    first, last = CORES[0], CORES[-1]
    everywhere = " ".join(map(str, CORES))
    assert threads(faces, False) == {f"0 {everywhere}", f"1 {everywhere}"}
    found = threads(faces, True, f"{last},{first}")
    assert {f"0 {last}", f"1 {first}"} <= found


def test_on_a_cpu_without_a_mask_it_is_refused(
    faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DALI_AFFINITY_MASK", raising=False)
    config = {"data": {"source": "folder", "root": faces}, "pipeline": "affine"}
    with pytest.raises(
        gpupipe.DeviceError,
        match=r"loader\.set_affinity=true .* runs on the CPU: set DALI_AFFINITY_MASK",
    ):
        gpupipe.load(config, engine="dali", device="cpu", set_affinity=True)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("0x3", "should be numbers of cores"),
        ("", "should be numbers of cores"),
        (f"{CORES[0]}", "has 1 cores, and DALI runs 2 threads"),
        (
            f"{CORES[0]},{max(CORES) + 1}",
            f"names core {max(CORES) + 1}, which this process may not use",
        ),
    ],
)
@pytest.mark.parametrize("device_id", [None, 0])
def test_a_mask_that_does_not_fit_is_refused(
    mask: str, said: str, device_id: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DALI_AFFINITY_MASK", mask)
    with pytest.raises(gpupipe.DeviceError, match=said):
        check_affinity(2, device_id)


def test_on_a_gpu_dali_asks_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DALI_AFFINITY_MASK", raising=False)
    check_affinity(2, 0)
