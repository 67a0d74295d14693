"""All checks on this machine, and the verdicts on cores, memory, files and the cache folder."""

import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpupipe
from gpupipe.cli.app import main
from gpupipe.doctor import CheckResult, checks, software_checks
from gpupipe.doctor.checks import GIB
from gpupipe.runtime.devices import gpu_count
from gpupipe.runtime.installation import find_distribution
from gpupipe.runtime.ranks import cores
from helpers import forked_python

FIELDS = (
    "print('\\n'.join('\\t'.join([f.subject, f.status, f.observation, f.advice]) for f in "
    "doctor.run_checks()))"
)


@pytest.fixture(scope="module")
def findings():
    return {f.subject: f for f in checks.run_checks()}


def check_elsewhere(code: str = "", **environment: str) -> dict[str, list[str]]:
    """Status, found and advice by subject, of a process that ran `code` first."""
    script = f"{code}\nfrom gpupipe.doctor import checks as doctor\n{FIELDS}"
    return by_subject(
        forked_python.run(["-c", script], env=os.environ | environment, check=True).stdout
    )


def by_subject(printed: str) -> dict[str, list[str]]:
    return {line.split("\t")[0]: line.split("\t")[1:] for line in printed.splitlines()}


def test_every_subject_is_there_once_and_none_failed(findings, forked_executable):
    assert len(findings) == len(checks.run_checks())
    expected = {
        "gpupipe",
        "Python",
        "torch",
        "torchvision",
        "DALI",
        "DALI on the CPU",
        "CUDA",
        "driver",
        "GPU",
    }
    assert expected | {"cores", "memory", "shared memory", "open files", "cache folder"} <= set(
        findings
    )
    assert not [f for f in findings.values() if "could not be examined" in f.observation]
    assert all(f.advice for f in findings.values() if f.status != "ok")


def test_the_command_prints_json_and_extras(findings):
    done = CliRunner().invoke(main, ["doctor", "--json", "-"])
    printed = {finding["subject"]: finding for finding in json.loads(done.stdout)}
    assert printed.keys() == findings.keys()
    assert printed["torch"] == asdict(findings["torch"])
    if find_distribution():
        assert {"extra server", "extra remote", "extra parquet"} <= printed.keys()
        assert metadata.version("pyzmq") in printed["extra server"]["observation"]


def test_versions_are_those_installed(findings):
    assert findings["Python"].observation == sys.version.split()[0]
    assert findings["torch"].observation == metadata.version("torch")
    assert findings["DALI"].observation.startswith(
        next(v for n, v in software_checks.dali_packages().items())
    )
    assert gpupipe.__version__ in findings["gpupipe"].observation


def test_cuda_is_that_of_torch(findings):
    import torch

    assert f"torch for {torch.version.cuda or 'the CPU only'}" in findings["CUDA"].observation


def test_dali_decoded_an_image_here(findings):
    assert findings["DALI on the CPU"] == CheckResult(
        "DALI on the CPU", "runs, and decodes JPEG images", "ok"
    )


def test_cores_are_those_that_the_loader_uses(findings):
    assert findings["cores"].observation.startswith(
        f"{cores()} usable (affinity {len(os.sched_getaffinity(0))}"
    )


def test_memory_is_that_of_the_kernel(findings):
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert findings["memory"].observation.startswith(f"{total / GIB:.1f} GiB, ")


def test_open_files_are_the_limits_of_the_process(findings):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (
        findings["open files"].observation
        == f"{soft if soft >= 0 else 'no limit'} (hard limit: {hard if hard >= 0 else 'none'})"
    )


def test_shared_memory_is_the_size_of_dev_shm(findings):
    assert findings["shared memory"].observation.startswith(
        f"{shutil.disk_usage('/dev/shm').total / GIB:.1f} GiB"
    )


@pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU")
def test_no_gpu_is_no_problem(findings):
    assert "runs on the CPU" in findings["GPU"].observation
    assert all(
        findings[s].status == "ok"
        for s in ("GPU", "hardware JPEG decoder", "region-of-interest decoding")
    )


def test_few_open_files_cores_and_a_bad_cache(tmp_path):
    (tmp_path / "file").write_text("a file is no folder")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    code = (
        f"import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, {hard})); "
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"
    )
    found = check_elsewhere(code, GPUPIPE_CACHE=str(tmp_path / "file" / "cache"))
    assert found["open files"][0] == "warning"
    assert found["open files"][1].startswith("1024 (hard limit: ")
    assert "ulimit -n" in found["open files"][2]
    assert found["cores"][0] == "warning"
    assert found["cores"][1].startswith("1 usable (affinity 1")
    assert found["cache folder"][0] == "problem"
    assert str(tmp_path) in found["cache folder"][1]
    assert "GPUPIPE_CACHE" in found["cache folder"][2]


def test_torch_and_dali_that_cannot_be_imported(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "raise ImportError('libcudart.so.13: cannot open shared object file')"
    )
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "__init__.py").write_text("raise ImportError('broken')")
    script = f"from gpupipe.doctor import checks as doctor\n{FIELDS}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    found = by_subject(done.stdout)
    assert found["CUDA"][:2] == [
        "problem",
        "torch cannot be imported: libcudart.so.13: cannot open shared object file",
    ]
    assert found["DALI on the CPU"][:2] == ["problem", "cannot run a pipeline: ImportError: broken"]
    assert found["cores"], "the rest was examined all the same"


def test_the_cache_folder_is_made_where_it_is_missing_and_left_empty(tmp_path):
    found = check_elsewhere(GPUPIPE_CACHE=str(tmp_path / "new" / "cache"))
    assert found["cache folder"][0] in ("ok", "warning")
    assert list((tmp_path / "new" / "cache").iterdir()) == []


def test_a_check_that_fails_is_a_finding():
    def check():
        yield CheckResult("one", "fine", "ok")
        raise RuntimeError("boom")

    first, second = checks.run_check("two", check)
    assert first.subject == "one"
    assert second == CheckResult(
        "two", "could not be examined: RuntimeError: boom", "warning", "please report this"
    )


def test_processors():
    assert checks.judge_cores(2, 2, 8) == CheckResult(
        "cores", "2 usable (affinity 2; the machine has 8)", "ok"
    )
    finding = checks.judge_cores(1, 4, 8)
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
    finding = checks.judge_memory(16 * GIB, available * GIB, None if limit is None else limit * GIB)
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
    assert checks.read_memory_limit("4:memory:/a/b\n1:cpu:/\n", tmp_path) == 4000
    assert checks.read_memory_limit("4:memory:/elsewhere\n", tmp_path) == 9223372036854771712
    assert checks.read_memory_limit("0::/x/y\n", tmp_path) == 3000
    assert checks.read_memory_limit("4:memory:/a/b\n0::/x/y\n", tmp_path) == 3000
    assert checks.read_memory_limit("0::/\n", tmp_path / "none") is None


def test_shared_memory():
    assert checks.judge_shared_memory(8 * GIB, 8 * GIB).status == "ok"
    small = checks.judge_shared_memory(64 * 2**20, 64 * 2**20)
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
    finding = checks.judge_open_files(soft, hard)
    assert (finding.status, finding.advice) == ("warning" if advice else "ok", advice)


def test_a_low_hard_limit_needs_root():
    assert "as root" in checks.judge_open_files(1024, 1024).advice


def test_cache():
    assert checks.judge_cache_folder(Path("/c"), 5 * GIB, "") == CheckResult(
        "cache folder", "/c, 5.0 GiB free", "ok"
    )
    assert checks.judge_cache_folder(Path("/c"), 5, "").status == "warning"
    assert checks.judge_cache_folder(Path("/c"), 0, "read-only").status == "problem"
