"""What launchers say of ranks and of the cores that they share."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.runtime import ranks
from gpupipe.runtime.ranks import cores, share

SLURM = {"SLURM_STEP_ID": "0", "SLURM_NODEID": "0"}
SAY = (
    "import json; from gpupipe.runtime import ranks; print(json.dumps([ranks.local_rank(), "
    "ranks.ranks_on_machine(), ranks.cores_of_rank()]))"
)
LAUNCH = """
import json, os, subprocess, sys
own, ranks = json.loads(sys.argv[1])
def bind():
    os.sched_setaffinity(0, own)
code = "from gpupipe.runtime.ranks import cores, cores_of_rank; print(cores(), cores_of_rank())"
env = os.environ | {"LOCAL_WORLD_SIZE": str(ranks)}
command = [sys.executable, "-c", code]
print(subprocess.check_output(command, text=True, preexec_fn=bind, env=env), end="")
"""
ALL = sorted(os.sched_getaffinity(0))
several = pytest.mark.skipif(cores() < 2, reason="one core cannot be shared out")


def clean(**variables: str) -> dict[str, str]:
    """The environment without what launchers set, and with `variables`."""
    launchers = ("SLURM_", "OMPI_", "RANK", "WORLD_SIZE", "LOCAL_")
    return {k: v for k, v in os.environ.items() if not k.startswith(launchers)} | variables


def said(**variables: str) -> list[Any]:
    """Local rank, ranks on the machine, and cores of the rank in a process with these variables."""
    done = subprocess.run(
        [sys.executable, "-c", SAY],
        env=clean(**variables),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("variables", "local_rank", "count"),
    [
        ({}, None, 1),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, 3, 4),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 1, 2),
        (SLURM | {"SLURM_LOCALID": "2", "SLURM_STEP_TASKS_PER_NODE": "4"}, 2, 4),
        (
            SLURM
            | {"SLURM_LOCALID": "2", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"},
            2,
            3,
        ),
        (
            SLURM | {"SLURM_LOCALID": "0", "SLURM_TASKS_PER_NODE": "8(x3)", "SLURM_NODEID": "1"},
            0,
            8,
        ),
        (SLURM | {"SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": "5"}, 0, 5),
        ({"SLURM_STEPID": "7", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2"}, 1, 2),
        # The batch script of a job of four tasks is one process.
        (
            {
                "SLURM_JOB_ID": "1",
                "SLURM_LOCALID": "0",
                "SLURM_NTASKS": "4",
                "SLURM_TASKS_PER_NODE": "4",
                "SLURM_NTASKS_PER_NODE": "4",
            },
            None,
            1,
        ),
        # torchrun and mpirun inside a step of one task say more than srun.
        (
            SLURM
            | {
                "SLURM_LOCALID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "1",
                "LOCAL_RANK": "5",
                "LOCAL_WORLD_SIZE": "8",
            },
            5,
            8,
        ),
        (
            SLURM
            | {
                "SLURM_LOCALID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "1",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            1,
            2,
        ),
    ],
    ids=str,
)
def test_ranks_of_a_machine(
    variables: dict[str, str], local_rank: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in set(os.environ) - set(clean()):
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (ranks.local_rank(), ranks.ranks_on_machine()) == (local_rank, count)


def test_tasks_of_nodes() -> None:
    assert [ranks.tasks_of_node("N", "4(x2),3", n) for n in range(4)] == [4, 4, 3, 3]
    assert [ranks.tasks_of_node("N", "2, 1(x2)", n) for n in range(3)] == [2, 1, 1]
    for text in ("four", "4(x)", "4,,3", "4(2)"):
        with pytest.raises(gpupipe.DeviceError, match=r"SLURM_TASKS_PER_NODE=.* is not understood"):
            ranks.tasks_of_node("SLURM_TASKS_PER_NODE", text, 0)


# --- cores, in real processes


@several
def test_ranks_share_the_cores_of_their_launcher() -> None:
    assert said()[2] == cores()
    assert said(LOCAL_WORLD_SIZE="2")[2] == cores() // 2
    assert (
        said(**SLURM, SLURM_STEP_TASKS_PER_NODE="2", SLURM_CPUS_ON_NODE=str(cores()))[2]
        == cores() // 2
    )


def test_a_rank_takes_a_core_at_least() -> None:
    assert said(LOCAL_WORLD_SIZE=str(cores() * 8))[2] == 1


def test_a_job_of_slurm_that_has_few_cores_shares_those() -> None:
    assert said(**SLURM, SLURM_STEP_TASKS_PER_NODE="2", SLURM_CPUS_ON_NODE="2")[2] == 1
    assert said(**SLURM, SLURM_STEP_TASKS_PER_NODE="1", SLURM_CPUS_ON_NODE="1")[2] == cores()


def bound(own: list[int], count: int) -> list[int]:
    """cores() and cores_of_rank() of a rank that its launcher bound to `own`, one of `count`."""
    command = [sys.executable, "-c", LAUNCH, json.dumps([own, count])]
    return [
        int(n)
        for n in subprocess.run(
            command, env=clean(), capture_output=True, text=True, check=True
        ).stdout.split()
    ]


@pytest.mark.parametrize(
    ("own", "launcher", "count", "expected"),
    [
        (32, 32, 4, 8),
        (8, 32, 4, 8),
        (16, 32, 4, 8),
        (4, 32, 4, 4),
        (8, 8, 4, 2),
        (1, 1, 4, 1),
        (2, 32, 40, 1),
        (30, 32, 1, 30),
    ],
)
def test_the_share_of_a_rank(own: int, launcher: int, count: int, expected: int) -> None:
    """Bound to nothing, to cores of its own, to a socket, to fewer; and a launcher that was itself
    bound.
    """
    assert share(own, launcher, count) == expected


@several
def test_cores_of_its_own_are_not_divided_a_second_time() -> None:
    """Two ranks, each bound to half of the cores, have that half."""
    half = ALL[: len(ALL) // 2]
    assert bound(half, 2) == [len(half), len(half)]
    assert bound(ALL, 2) == [len(ALL), len(ALL) // 2]


def test_a_rank_that_is_bound_to_one_core_has_one() -> None:
    assert bound(ALL[:1], 4) == [1, 1]


@several
def test_the_loader_has_its_share_of_threads_and_the_number_that_is_given(
    faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    config = {
        "data": {"source": "folder", "root": faces},
        "pipeline": "affine",
        "loader": {"device": "cpu"},
    }
    with gpupipe.load(config) as loader:
        assert loader.threads == max(1, len(os.sched_getaffinity(os.getppid())) // 2)
    with gpupipe.load(config, threads=3) as loader:
        assert loader.threads == 3


def test_a_trainer_tells_how_many_ranks_it_starts() -> None:
    with ranks.assume_ranks_on_machine(4):
        assert ranks.ranks_on_machine() == 4
    assert ranks.ranks_on_machine() == 1


# --- processes of which nobody said that they are ranks


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        (SLURM | {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}, "srun"),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, "mpirun"),
    ],
)
def test_processes_that_load_everything_each_are_warned(
    variables: dict[str, str], launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(
        UserWarning,
        match=rf"{launcher} started 4 processes, of which this is number "
        rf"2.*shard=\{{rank: 2, world_size: 4\}}",
    ):
        assert ranks.rank_and_world() == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert ranks.rank_and_world() == (2, 4)


def test_a_batch_script_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}.items():
        monkeypatch.setenv(name, value)
    assert ranks.rank_and_world() == (0, 1)
