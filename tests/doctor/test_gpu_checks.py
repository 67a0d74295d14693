import pytest

from gpupipe.doctor import CheckResult, gpu_checks
from gpupipe.runtime.capability_probe import JpegEngines, ProbeOutcome
from gpupipe.runtime.devices import Driver


def test_cuda_of_builds():
    assert gpu_checks.judge_cuda("13.2", "", [12]) == CheckResult(
        "CUDA", "torch for 13.2, DALI for 12", "ok"
    )
    assert gpu_checks.judge_cuda(None, "", []).observation == "torch for the CPU only"
    assert gpu_checks.judge_cuda(None, "No module named 'torch'", [12]).status == "problem"


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
    finding = gpu_checks.judge_driver(Driver(version, cuda, ()), needs, True)
    assert finding.status == status
    assert version in finding.observation


def test_a_driver_that_is_too_old_names_who_needs_what():
    finding = gpu_checks.judge_driver(
        Driver("535.54.03", (12, 2), ("A100",)), {"torch": 13, "DALI": 12}, True
    )
    assert (
        finding.observation
        == "535.54.03, runs CUDA 12.2; torch needs CUDA 13 (driver 580 or newer)"
    )


def test_no_driver():
    assert gpu_checks.judge_driver(None, {"DALI": 12}, False).status == "ok"
    finding = gpu_checks.judge_driver(None, {"DALI": 12}, True)
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
    finding = gpu_checks.judge_gpus(cards, torch_cuda, seen, setting, "the driver is too old")
    assert finding.status == status
    assert all(c in finding.observation for c in cards)
    assert ("the driver is too old" in finding.observation) == (
        status == "problem" and torch_cuda is not None
    )


def test_a_card():
    assert gpu_checks.judge_card(1, "H100", (9, 0), "") == CheckResult(
        "GPU 1", "H100, compute capability 9.0", "ok"
    )
    finding = gpu_checks.judge_card(0, "V100", (7, 0), "no kernel image is available")
    assert finding.status == "problem"
    assert "no kernel image" in finding.observation


def test_dali_that_does_not_run_on_a_gpu_is_a_problem():
    finding = gpu_checks.judge_decoding(
        "GPU 0: DALI", ProbeOutcome(False, False, False, "RuntimeError: no")
    )
    assert (finding.status, finding.observation) == (
        "problem",
        "cannot run a pipeline: RuntimeError: no",
    )
    assert (
        gpu_checks.judge_decoding("GPU 0: DALI", ProbeOutcome(True, False, False, "no")).observation
        == "cannot decode a JPEG image: no"
    )
    assert (
        gpu_checks.judge_decoding(
            "GPU 0: DALI", ProbeOutcome(True, True, False, "crashed with SIGSEGV")
        ).status
        == "ok"
    )


def test_region_decoding():
    finding = gpu_checks.judge_region_decoding(
        "GPU 0", ProbeOutcome(True, True, False, "crashed with SIGSEGV")
    )
    assert (finding.status, finding.observation) == ("warning", "not used: crashed with SIGSEGV")
    works = ProbeOutcome(True, True, True)
    assert gpu_checks.judge_region_decoding("GPU 0", works) == CheckResult("GPU 0", "works", "ok")


@pytest.mark.parametrize(
    ("nvjpeg", "capability", "cuda", "is_advised"),
    [
        ("12.4.0.76", (9, 0), (13, 0), True),
        ("12.4.0.76", (7, 5), (13, 2), True),
        ("12.4.0.76", (7, 0), (13, 0), False),
        ("12.4.0.76", (9, 0), (12, 8), False),
        ("12.4.0.76", (9, 0), None, False),
        ("13.0.1.86", (9, 0), (13, 0), False),
        (None, (9, 0), (13, 0), False),
    ],
)
def test_cuda_13_is_advised_where_the_gpu_and_its_driver_allow_it(
    nvjpeg, capability, cuda, is_advised
):
    driver = None if cuda is None else Driver("580.65.06", cuda, ("H100",))
    command = "pip install '.[cuda13]'"
    finding = gpu_checks.judge_damaged_jpegs("GPU 0", nvjpeg, capability, driver, command)
    assert (finding.status == "warning") is (command in finding.advice) is is_advised
    assert (nvjpeg or "unknown") in finding.observation


def test_the_hardware_decoder_says_how_it_was_found():
    assert gpu_checks.judge_jpeg_decoder("d", JpegEngines(8, 1)) == CheckResult(
        "d", "engines: 8, cores in each: 1 (counted by nvJPEG)", "ok"
    )
    assert gpu_checks.judge_jpeg_decoder("d", JpegEngines(0)) == CheckResult(
        "d", "none: CUDA cores decode (counted by nvJPEG)", "ok"
    )
    finding = gpu_checks.judge_jpeg_decoder("d", JpegEngines(None, 0, "nvJPEG status 6"))
    assert (finding.status, finding.observation) == (
        "warning",
        "unknown: nvJPEG gave no answer: nvJPEG status 6",
    )
