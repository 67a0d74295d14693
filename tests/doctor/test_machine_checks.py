from pathlib import Path

import pytest

from gpupipe.doctor import machine_checks
from gpupipe.doctor.finding import Finding
from gpupipe.doctor.machine_checks import GIB


def test_processors():
    assert machine_checks.judge_processors(2, 2, 8) == Finding(
        "cores", "2 usable (affinity 2; the machine has 8)", "ok"
    )
    finding = machine_checks.judge_processors(1, 4, 8)
    assert finding.status == "warning"
    assert (
        finding.observation
        == "1 usable (affinity 4, quota of the control group 1; the machine has 8)"
    )


@pytest.mark.parametrize(
    ("available", "limit", "status"),
    [
        (8, None, "ok"),
        (1, None, "warning"),
        (8, 1, "warning"),
        (8, 4, "ok"),
        (1, 2**33, "warning"),
        (8, 2**33, "ok"),
    ],
)
def test_memory(available, limit, status):
    finding = machine_checks.judge_memory(
        16 * GIB, available * GIB, None if limit is None else limit * GIB
    )
    assert finding.status == status
    assert ("control group" in finding.observation) == (limit is not None and limit < 16)


def test_memory_limits_of_control_groups(tmp_path):
    for folder, file, text in [
        ("memory", "memory.limit_in_bytes", "9223372036854771712"),
        ("memory/a/b", "memory.limit_in_bytes", "4000"),
        ("x/y", "memory.max", "max"),
        ("x", "memory.max", "3000"),
    ]:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / file).write_text(text + "\n")
    assert machine_checks.read_memory_limit("4:memory:/a/b\n1:cpu:/\n", tmp_path) == 4000
    assert (
        machine_checks.read_memory_limit("4:memory:/elsewhere\n", tmp_path) == 9223372036854771712
    )
    assert machine_checks.read_memory_limit("0::/x/y\n", tmp_path) == 3000
    assert machine_checks.read_memory_limit("4:memory:/a/b\n0::/x/y\n", tmp_path) == 3000
    assert machine_checks.read_memory_limit("0::/\n", tmp_path / "none") is None


def test_shared_memory():
    assert machine_checks.judge_shared_memory(8 * GIB, 8 * GIB).status == "ok"
    small = machine_checks.judge_shared_memory(64 * 2**20, 64 * 2**20)
    assert small.status == "warning"
    assert "--shm-size" in small.advice


@pytest.mark.parametrize(
    ("soft", "hard", "advice"),
    [
        (4096, 4096, ""),
        (-1, -1, ""),
        (1024, 1048576, "ulimit -n 65536"),
        (1024, -1, "ulimit -n 65536"),
        (1024, 16384, "ulimit -n 16384"),
    ],
)
def test_open_files(soft, hard, advice):
    finding = machine_checks.judge_open_files(soft, hard)
    assert (finding.status, finding.advice) == ("warning" if advice else "ok", advice)


def test_a_low_hard_limit_needs_root():
    assert "as root" in machine_checks.judge_open_files(1024, 1024).advice


def test_cache():
    assert machine_checks.judge_cache_folder(Path("/c"), 5 * GIB, "") == Finding(
        "cache folder", "/c, 5.0 GiB free", "ok"
    )
    assert machine_checks.judge_cache_folder(Path("/c"), 5, "").status == "warning"
    assert machine_checks.judge_cache_folder(Path("/c"), 0, "read-only").status == "problem"
