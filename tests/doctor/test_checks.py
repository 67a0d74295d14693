import os
import resource
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from gpupipe.doctor import checks, rules
from gpupipe.doctor.rules import GIB, Driver, Finding
from gpupipe.runtime.capability_probe import JpegEngines, ProbeOutcome
from gpupipe.runtime.devices import cores, gpu_count

FIELDS = (
    "print('\\n'.join('\\t'.join([f.subject, f.status, f.found, f.advice]) for f in "
    "doctor.examine()))"
)


@pytest.fixture(scope="module")
def findings():
    return {f.subject: f for f in checks.examine()}


def examined_elsewhere(code: str = "", **environment: str) -> dict[str, list[str]]:
    """Status, found and advice by subject, of a process that ran `code` first."""
    script = f"{code}\nfrom gpupipe.doctor import checks as doctor\n{FIELDS}"
    env = os.environ | environment
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env
    )
    return {line.split("\t")[0]: line.split("\t")[1:] for line in done.stdout.splitlines()}


# --- the whole examination, of this machine


def test_every_subject_is_there_once_and_none_failed(findings):
    assert len(findings) == len(checks.examine())
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
    assert not [f for f in findings.values() if "could not be examined" in f.found]
    assert all(f.advice for f in findings.values() if f.status != "ok")


def test_versions_are_those_installed(findings):
    assert findings["Python"].found == sys.version.split()[0]
    assert findings["torch"].found == metadata.version("torch")
    assert findings["DALI"].found.startswith(next(v for n, v in checks._dali_packages().items()))
    assert metadata.version("gpupipe") in findings["gpupipe"].found


def test_cuda_is_that_of_torch(findings):
    import torch

    assert f"torch for {torch.version.cuda or 'the CPU only'}" in findings["CUDA"].found


def test_dali_decoded_an_image_here(findings):
    assert findings["DALI on the CPU"] == Finding(
        "DALI on the CPU", "runs, and decodes JPEG images", "ok"
    )


def test_cores_are_those_that_the_loader_uses(findings):
    assert findings["cores"].found.startswith(
        f"{cores()} usable (affinity {len(os.sched_getaffinity(0))}"
    )


def test_memory_is_that_of_the_kernel(findings):
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert findings["memory"].found.startswith(f"{total / GIB:.1f} GiB, ")


def test_open_files_are_the_limits_of_the_process(findings):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (
        findings["open files"].found
        == f"{soft if soft >= 0 else 'no limit'} (hard limit: {hard if hard >= 0 else 'none'})"
    )


def test_shared_memory_is_the_size_of_dev_shm(findings):
    assert findings["shared memory"].found.startswith(
        f"{shutil.disk_usage('/dev/shm').total / GIB:.1f} GiB"
    )


@pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU")
def test_no_gpu_is_no_problem(findings):
    assert "CPU back end" in findings["GPU"].found
    assert all(
        findings[s].status == "ok"
        for s in ("GPU", "hardware JPEG decoder", "region-of-interest decoding")
    )


# --- real troubles, each in a process of its own


def test_few_open_files_cores_and_a_bad_cache(tmp_path):
    (tmp_path / "file").write_text("a file is no folder")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    code = (
        f"import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, {hard})); "
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"
    )
    found = examined_elsewhere(code, GPUPIPE_CACHE=str(tmp_path / "file" / "cache"))
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
    found = examined_elsewhere(PYTHONPATH=str(tmp_path))
    assert found["CUDA"][:2] == [
        "problem",
        "torch cannot be imported: libcudart.so.13: cannot open shared object file",
    ]
    assert found["DALI on the CPU"][:2] == ["problem", "cannot run a pipeline: ImportError: broken"]
    assert found["cores"], "the rest was examined all the same"


def test_the_cache_folder_is_made_where_it_is_missing_and_left_empty(tmp_path):
    found = examined_elsewhere(GPUPIPE_CACHE=str(tmp_path / "new" / "cache"))
    assert found["cache folder"][0] in ("ok", "warning")
    assert list((tmp_path / "new" / "cache").iterdir()) == []


def test_a_check_that_fails_is_a_finding():
    def check():
        yield Finding("one", "fine", "ok")
        raise RuntimeError("boom")

    first, second = checks.tried("two", check)
    assert first.subject == "one"
    assert second == Finding(
        "two", "could not be examined: RuntimeError: boom", "warning", "please report this"
    )


# --- rules: software


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.15.0+cu132", (2, 15, 0)),
        ("2.4.0.dev20260101", (2, 4, 0)),
        ("580.65.06", (580, 65, 6)),
        ("none", ()),
    ],
)
def test_release(text, numbers):
    assert rules.release(text) == numbers


def test_least_versions_are_those_of_the_metadata():
    required = metadata.requires("gpupipe") or []
    for name, least in rules.NEEDS.items():
        assert any(r.partition(";")[0].replace(" ", "") == f"{name}>={least}" for r in required), (
            name
        )


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 9, 18), "problem"), ((3, 10, 0), "ok"), ((3, 13, 9), "ok"), ((3, 14, 0), "problem")],
)
def test_python(version, status):
    assert rules.python(version).status == status


@pytest.mark.parametrize(
    ("name", "version", "status"),
    [
        ("torch", None, "problem"),
        ("torch", "2.5.1", "problem"),
        ("torch", "2.6.0+cu124", "ok"),
        ("torch", "2.10.0", "ok"),
        ("torchvision", "0.9.0", "problem"),
        ("torchvision", "0.21.0", "ok"),
    ],
)
def test_package(name, version, status):
    finding = rules.package(name, version)
    assert (finding.subject, finding.status) == (name, status)
    assert (finding.advice == f"pip install '{name}>={rules.NEEDS[name]}'") == (status == "problem")


@pytest.mark.parametrize(
    ("packages", "status", "advice"),
    [
        ({}, "problem", "pip install 'nvidia-dali-cuda120>=2.4'"),
        ({"nvidia-dali-cuda120": "2.4.0"}, "ok", ""),
        ({"nvidia-dali-cuda130": "2.10.1"}, "ok", ""),
        ({"nvidia-dali-cuda130": "2.3.0"}, "problem", "pip install 'nvidia-dali-cuda130>=2.4'"),
        ({"nvidia-dali-cuda110": "1.40.0"}, "problem", "pip install 'nvidia-dali-cuda110>=2.4'"),
        (
            {"nvidia-dali-cuda120": "2.4.0", "nvidia-dali-cuda130": "2.4.0"},
            "problem",
            "uninstall all and install one: pip uninstall -y nvidia-dali-cuda120 "
            "nvidia-dali-cuda130; pip install nvidia-dali-cuda120",
        ),
    ],
)
def test_dali(packages, status, advice):
    finding = rules.dali(packages)
    assert (finding.subject, finding.status, finding.advice) == ("DALI", status, advice)


@pytest.mark.parametrize(
    ("requires", "torch_version", "problems"),
    [
        (["numpy", "torch==2.6.0", "pillow"], "2.6.0+cu124", 0),
        (["torch (==2.6.0)"], "2.7.0", 1),
        (["torch (>=2.14.0)"], "2.15.0", 0),
        (["torch (>=2.14.0)"], "2.6.0", 1),
        (["torch==2.6.0"], None, 0),
        (["torchdata==0.1", "numpy"], "2.6.0", 0),
    ],
)
def test_torchvision_fits_torch(requires, torch_version, problems):
    assert [f.status for f in rules.pair(requires, torch_version)] == ["problem"] * problems


def test_cuda_of_builds():
    assert rules.cuda("13.2", "", [12]) == Finding("CUDA", "torch for 13.2, DALI for 12", "ok")
    assert rules.cuda(None, "", []).found == "torch for the CPU only"
    assert rules.cuda(None, "No module named 'torch'", [12]).status == "problem"


# --- rules: GPUs


@pytest.mark.parametrize(
    ("version", "cuda", "needs", "status"),
    [
        ("580.65.06", (13, 0), {"torch": 13, "DALI": 12}, "ok"),
        ("570.86.10", (12, 8), {"torch": 13, "DALI": 12}, "problem"),
        ("570.86.10", (12, 8), {"torch": 12, "DALI": 12}, "ok"),
        ("570.86.10", (13, 0), {"torch": 13}, "ok"),  # with a compatibility package
        ("580.65.06", (12, 4), {"torch": 13}, "problem"),  # with an old one in the way
        ("525.60.13", None, {"DALI": 12}, "ok"),
        ("520.61.05", None, {"DALI": 12}, "problem"),
        ("579.99", None, {"DALI": 13}, "problem"),
        ("580.0", None, {"DALI": 13}, "ok"),
        ("of unknown version", None, {"DALI": 12}, "ok"),
        ("400.0", None, {}, "ok"),
    ],
)
def test_driver(version, cuda, needs, status):
    finding = rules.driver(Driver(version, cuda, ()), needs, True)
    assert finding.status == status
    assert version in finding.found


def test_a_driver_that_is_too_old_names_who_needs_what():
    finding = rules.driver(Driver("535.54.03", (12, 2), ("A100",)), {"torch": 13, "DALI": 12}, True)
    assert finding.found == "535.54.03, runs CUDA 12.2; torch needs CUDA 13 (driver 580 or newer)"


def test_no_driver():
    assert rules.driver(None, {"DALI": 12}, False).status == "ok"
    finding = rules.driver(None, {"DALI": 12}, True)
    assert finding.status == "warning"
    assert "--gpus all" in finding.advice


@pytest.mark.parametrize(
    ("cards", "torch_cuda", "seen", "setting", "status"),
    [
        ((), "13.2", 0, None, "ok"),
        ((), None, 0, None, "ok"),
        (("H100",), "13.2", 1, None, "ok"),
        (("H100", "H100"), "13.2", 1, "1", "ok"),
        ((), "13.2", 1, None, "ok"),
        (("H100",), None, 0, None, "problem"),
        (("H100",), None, 0, "", "problem"),
        (("H100",), "13.2", 0, "", "warning"),
        (("H100",), "13.2", 0, None, "problem"),
    ],
)
def test_gpus(cards, torch_cuda, seen, setting, status):
    finding = rules.gpus(cards, torch_cuda, seen, setting, "the driver is too old")
    assert finding.status == status
    assert all(c in finding.found for c in cards)
    assert ("the driver is too old" in finding.found) == (
        status == "problem" and torch_cuda is not None
    )


def test_a_card():
    assert rules.card(1, "H100", (9, 0), "") == Finding(
        "GPU 1", "H100, compute capability 9.0", "ok"
    )
    finding = rules.card(0, "V100", (7, 0), "no kernel image is available")
    assert finding.status == "problem"
    assert "no kernel image" in finding.found


def test_dali_that_does_not_run_on_a_gpu_is_a_problem():
    finding = rules.decoding("GPU 0: DALI", ProbeOutcome(False, False, False, "RuntimeError: no"))
    assert (finding.status, finding.found) == ("problem", "cannot run a pipeline: RuntimeError: no")
    assert (
        rules.decoding("GPU 0: DALI", ProbeOutcome(True, False, False, "no")).found
        == "cannot decode a JPEG image: no"
    )
    assert (
        rules.decoding(
            "GPU 0: DALI", ProbeOutcome(True, True, False, "crashed with SIGSEGV")
        ).status
        == "ok"
    )


def test_region_decoding():
    finding = rules.region(
        "GPU 0", ProbeOutcome(True, True, False, "crashed with SIGSEGV"), "12.4.0.76"
    )
    assert (finding.status, finding.found) == ("warning", "not used: crashed with SIGSEGV")
    works = ProbeOutcome(True, True, True)
    assert (
        rules.region("GPU 0", works, "13.2.0")
        == rules.region("GPU 0", works, None)
        == Finding("GPU 0", "works", "ok")
    )
    assert "nvJPEG 12.4.0.76, below 13.2" in rules.region("GPU 0", works, "12.4.0.76").found


@pytest.mark.parametrize(
    ("capability", "there"),
    [
        ((7, 0), False),
        ((7, 5), False),
        ((8, 0), True),
        ((8, 6), False),
        ((8, 9), None),
        ((9, 0), True),
        ((10, 0), True),
        ((10, 3), True),
        ((12, 0), None),
    ],
)
def test_jpeg_hardware_by_capability(capability, there):
    assert rules.jpeg_hardware(capability) is there


def test_the_hardware_decoder_says_how_it_was_found():
    assert rules.jpeg("d", JpegEngines(8, 1), (9, 0)) == Finding(
        "d", "engines: 8, cores in each: 1 (counted by nvJPEG)", "ok"
    )
    assert rules.jpeg("d", JpegEngines(0), (8, 6)) == Finding(
        "d", "none: CUDA cores decode (counted by nvJPEG)", "ok"
    )
    finding = rules.jpeg("d", JpegEngines(None, 0, "nvJPEG status 6"), (9, 0))
    assert (finding.status, finding.found) == (
        "warning",
        "likely there, by compute capability 9.0; nvJPEG gave no answer: nvJPEG status 6",
    )


# --- rules: the machine


def test_processors():
    assert rules.processors(2, 2, 8) == Finding(
        "cores", "2 usable (affinity 2; the machine has 8)", "ok"
    )
    finding = rules.processors(1, 4, 8)
    assert finding.status == "warning"
    assert finding.found == "1 usable (affinity 4, quota of the control group 1; the machine has 8)"


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
    finding = rules.memory(16 * GIB, available * GIB, None if limit is None else limit * GIB)
    assert finding.status == status
    assert ("control group" in finding.found) == (limit is not None and limit < 16)


def test_memory_limits_of_control_groups(tmp_path):
    for folder, file, text in [
        ("memory", "memory.limit_in_bytes", "9223372036854771712"),
        ("memory/a/b", "memory.limit_in_bytes", "4000"),
        ("x/y", "memory.max", "max"),
        ("x", "memory.max", "3000"),
    ]:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / file).write_text(text + "\n")
    assert rules.memory_limit("4:memory:/a/b\n1:cpu:/\n", tmp_path) == 4000
    assert rules.memory_limit("4:memory:/elsewhere\n", tmp_path) == 9223372036854771712
    assert rules.memory_limit("0::/x/y\n", tmp_path) == 3000
    assert rules.memory_limit("4:memory:/a/b\n0::/x/y\n", tmp_path) == 3000
    assert rules.memory_limit("0::/\n", tmp_path / "none") is None


def test_shared_memory():
    assert rules.shared_memory(8 * GIB, 8 * GIB).status == "ok"
    small = rules.shared_memory(64 * 2**20, 64 * 2**20)
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
    finding = rules.open_files(soft, hard)
    assert (finding.status, finding.advice) == ("warning" if advice else "ok", advice)


def test_a_low_hard_limit_needs_root():
    assert "as root" in rules.open_files(1024, 1024).advice


def test_cache():
    assert rules.cache(Path("/c"), 5 * GIB, "") == Finding("cache folder", "/c, 5.0 GiB free", "ok")
    assert rules.cache(Path("/c"), 5, "").status == "warning"
    assert rules.cache(Path("/c"), 0, "read-only").status == "problem"
