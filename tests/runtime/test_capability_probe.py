import subprocess
import sys

import pytest

from gpupipe.runtime import capability_probe as probes
from gpupipe.runtime.capability_probe import (
    ProbeOutcome,
    codec_fault,
    describe_exit,
    jpeg_engines,
    probe,
    ran_out_of_memory,
    visible_device,
)
from gpupipe.runtime.devices import gpu_count


@pytest.mark.usefixtures("forked_executable")
def test_the_cpu_passes_every_stage():
    assert probe(None) == ProbeOutcome(True, True, True)


@pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU")
def test_a_gpu_that_is_not_there_passes_none_and_says_why():
    outcome = probe(0)
    assert (outcome.pipeline, outcome.decode, outcome.region) == (False, False, False)
    assert "CUDA is not available" in outcome.reason


@pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU")
def test_jpeg_engines_are_unknown_without_a_gpu():
    engines = jpeg_engines(0)
    assert engines.number is None
    assert "nvJPEG status" in engines.reason


def test_a_real_crash_is_reported_by_its_signal():
    completed = subprocess.run(
        [sys.executable, "-c", "import os; os.abort()"], capture_output=True, check=False
    )
    assert describe_exit(completed.returncode, completed.stderr.decode()) == "crashed with SIGABRT"


@pytest.mark.parametrize(
    ("status", "stderr", "reason"),
    [
        (0, "a warning\n", ""),
        (-11, "", "crashed with SIGSEGV"),
        (-63, "", "crashed with signal 63"),
        (1, "dlopen libcuda.so failed.\nRuntimeError: no\n\n", "RuntimeError: no"),
        (3, "", "exit status 3"),
    ],
)
def test_describe_exit(status, stderr, reason):
    assert describe_exit(status, stderr) == reason


def test_a_child_that_raises_says_so_in_one_line():
    assert probes._run_child("no such task") == ("", "KeyError: 'no such task'", True)


def test_a_child_that_is_too_slow_is_not_conclusive(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probes, "_SECONDS", 0.01)
    assert probes._run_child("decode", "cpu") == ("", "no answer within 0.01 s", False)


@pytest.mark.parametrize(
    "code",
    [
        "bytearray(1 << 62)",
        "import numpy; numpy.zeros(1 << 52)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_a_child_without_memory_ran_out_of_memory(code):
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    reason = describe_exit(completed.returncode, completed.stderr.decode())
    assert reason
    assert ran_out_of_memory(completed.returncode, reason)


@pytest.mark.parametrize(
    ("reason", "is_memory"),
    [
        ("RuntimeError: CUDA runtime API error cudaErrorMemoryAllocation (2): out of memory", True),
        ("RuntimeError: Can't allocate 1073741824 bytes on device 0.", True),
        ("RuntimeError: nvImageCodec failure: '#5'", True),
        ("RuntimeError: nvImageCodec failure: '#8'", False),
        ("ValueError: a part of an image came out wrong, by 255.0 levels on average", False),
        ("crashed with SIGSEGV", False),
    ],
)
def test_lack_of_memory_is_recognised_in_the_message(reason, is_memory):
    assert ran_out_of_memory(1, reason) is is_memory


@pytest.mark.parametrize(
    ("nvimgcodec", "nvjpeg", "named"),
    [
        ("0.9.0", "13.2.0.10", "nvImageCodec 0.9.0"),
        ("0.9.0.20", "12.4.0.76", "nvImageCodec 0.9.0.20"),
        ("0.9.0.1859", None, "nvImageCodec 0.9.0.1859"),
        ("0.9.1", "13.2.0.10", ""),
        ("0.8.0.1422", "14.0", ""),
        ("0.10.0", "13.10.1", ""),
        (None, "13.2", ""),
        ("0.10.0", "13.1.0.59", "nvJPEG 13.1.0.59"),
        ("0.10.0", "12.4.0.76", "nvJPEG 12.4.0.76"),
        ("0.10.0", None, "nvJPEG of unknown version"),
    ],
)
def test_codecs_that_do_not_decode_parts_of_images_reliably(nvimgcodec, nvjpeg, named):
    reason = codec_fault(nvimgcodec, nvjpeg)
    assert named in reason
    assert bool(reason) is bool(named)


@pytest.mark.parametrize(
    ("setting", "device", "visible"),
    [
        (None, 0, "0"),
        (None, 3, "3"),
        ("", 0, "0"),
        ("2,5", 1, "5"),
        ("GPU-ab, GPU-cd", 1, "GPU-cd"),
        ("2", 1, "1"),
    ],
)
def test_the_one_gpu_that_a_child_sees(setting, device, visible):
    assert visible_device(setting, device) == visible
