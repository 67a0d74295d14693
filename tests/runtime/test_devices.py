"""Which GPU a process takes, and what is asked of NVIDIA's driver."""

import os
import subprocess
import sys
import types
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpupipe.bench.machine import Load, gpu_of
from gpupipe.runtime import devices
from gpupipe.runtime.devices import gpu_count, why_unused
from helpers import forked_python
from helpers.fake_cuda import FakeCuda

ROOT = Path(__file__).parents[2]
PYNVML = """
class NVMLError(Exception): ...
def nvmlInit(): ...
def nvmlShutdown(): ...
def nvmlSystemGetDriverVersion(): return "580.65.06"
def nvmlSystemGetCudaDriverVersion(): return 13000
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(number): return 1
def nvmlDeviceGetName(handle): return "NVIDIA H100"
def nvmlDeviceGetMemoryInfo(handle): raise NVMLError
"""
"""What NVML says on a machine with a GPU: there is none here, and so no NVML."""
FRESH = "import sys; sys.modules.pop('pynvml', None)\n"
"""Forgets the other pynvml, which torch has imported before the process was forked."""


@pytest.fixture
def with_a_driver(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds this pynvml."""
    if gpu_count():
        pytest.skip("torch sees a GPU here")
    (tmp_path / "pynvml.py").write_text(PYNVML)
    return {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | {
        "PYTHONPATH": str(tmp_path)
    }


def test_auto_warns_once_of_a_gpu_that_torch_does_not_see(with_a_driver: dict[str, str]) -> None:
    code = FRESH + (
        "import warnings; warnings.simplefilter('always'); from gpupipe.runtime.devices "
        "import resolve; print(resolve('auto'), resolve('auto'), resolve('cpu'))"
    )
    done = forked_python.run(["-c", code], env=with_a_driver, check=True)
    assert done.stdout == "None None None\n"
    assert done.stderr.count("loader.device=auto runs on the CPU") == 1
    assert "NVIDIA H100" in done.stderr


@pytest.mark.parametrize(("device", "hidden"), [("cpu", None), ("auto", ""), ("auto", "-1")])
def test_who_chose_the_cpu_is_not_warned(
    with_a_driver: dict[str, str], device: str, hidden: str | None
) -> None:
    environment = with_a_driver | ({} if hidden is None else {"CUDA_VISIBLE_DEVICES": hidden})
    code = FRESH + f"from gpupipe.runtime.devices import resolve; print(resolve({device!r}))"
    done = forked_python.run(["-c", code], env=environment, check=True)
    assert (done.stdout, done.stderr) == ("None\n", "")


def test_the_doctor_tells_of_it_too(with_a_driver: dict[str, str]) -> None:
    code = FRESH + (
        "from gpupipe.doctor import checks as doctor; print([(f.status, f.observation) for f in "
        "doctor.run_checks() if f.subject == 'GPU'])"
    )
    said = forked_python.run(["-c", code], env=with_a_driver, check=True).stdout
    assert "problem" in said
    assert "NVIDIA H100, but torch" in said


@pytest.mark.parametrize(("cuda", "seen"), [(13000, 2), (14010, 2), (12040, 0), (0, 0)])
def test_the_question_for_gpus_does_not_initialise_cuda(
    monkeypatch: pytest.MonkeyPatch, cuda: int, seen: int
) -> None:
    """Or no forked process could use a GPU. 0: NVML finds no libcuda."""
    runtime, library = FakeCuda(monkeypatch), types.ModuleType("pynvml")
    exec(PYNVML.replace("13000", str(cuda)), library.__dict__)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_count.__wrapped__() == seen
    assert runtime.initialisations == 0
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(
    ("cards", "torch_cuda", "setting", "parts"),
    [
        ([], "13.0", None, []),
        ([], None, None, []),
        (["H100", "A30"], "13.0", None, ["H100; A30", "'gpupipe doctor' says why"]),
        (["H100"], None, None, ["H100", "torch is built without CUDA"]),
        (["H100"], "13.0", "7", ["H100", "CUDA_VISIBLE_DEVICES='7'"]),
        (["H100"], "13.0", "", []),
        (["H100"], None, "-1", []),
    ],
)
def test_why_a_gpu_is_not_used(
    cards: list[str], torch_cuda: str | None, setting: str | None, parts: list[str]
) -> None:
    said = why_unused(cards, torch_cuda, setting)
    assert bool(said) == bool(parts)
    assert all(part in said for part in parts)


# --- which DALI is installed


def test_dali_is_an_extra_for_each_cuda_and_never_both() -> None:
    """What was required of everyone stood beside the other one, and each wrote over the other's
    files.
    """
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    assert "nvidia-dali" not in setup["options"]["install_requires"]
    assert extras["cuda12"].strip() == 'nvidia-dali-cuda120 >= 2.4; sys_platform == "linux"'
    assert extras["cuda13"].strip() == 'nvidia-dali-cuda130 >= 2.4; sys_platform == "linux"'
    assert not [
        name
        for name, packages in extras.items()
        if "nvidia-dali" in packages and name not in ("cuda12", "cuda13")
    ]


@pytest.mark.parametrize(("words", "extra"), [([], "cuda12"), (["CUDA=cuda13"], "cuda13")])
def test_the_two_commands_install_the_dali_for_cuda_12(
    words: list[str], extra: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        ["make", "-n", "test", f"VENV={tmp_path / 'new'}", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert [line.partition("--editable ")[2] for line in installs] == [
        f"'.[{extra},cpu,fetch,test]'"
    ]


class Library:
    """NVML on a machine without a driver has no answers: this one knows GPUs and parts of them by
    their UUID, as NVML does.
    """

    class NVMLError(Exception):
        """What NVML raises."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.known:
            raise self.NVMLError("NVML_ERROR_NOT_FOUND")
        return f"handle of {uuid}"


@pytest.mark.parametrize(
    ("known", "uuid", "handle"),
    [
        (["GPU-ab", "GPU-cd"], "cd", "handle of GPU-cd"),
        (["GPU-ab", "MIG-cd"], "cd", "handle of MIG-cd"),
        (["GPU-ab"], "GPU-ab", "handle of GPU-ab"),
        (["MIG-ab"], "MIG-ab", "handle of MIG-ab"),
    ],
)
def test_a_gpu_and_a_part_of_one_are_found_by_uuid(
    known: list[str], uuid: str, handle: str
) -> None:
    assert devices.handle_of_uuid(Library(*known), uuid) == handle


def test_a_gpu_that_nvml_does_not_know_is_nvmls_error() -> None:
    with pytest.raises(Library.NVMLError):
        devices.handle_of_uuid(Library("GPU-ab"), "cd")


@pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU")
def test_without_a_driver_nothing_answers() -> None:
    with devices.nvml_session() as library:
        assert library is None
    assert devices.find_driver() is None
    with Load("gpu:0") as load:
        pass
    assert load.gpu is None


@pytest.mark.parametrize(("device", "number"), [("cpu", None), ("gpu:0", 0), ("gpu:3", 3)])
def test_what_is_synchronised_and_measured_is_the_loaders_gpu(
    device: str, number: int | None
) -> None:
    loader: Any = SimpleNamespace(engine=SimpleNamespace(device=device))
    assert gpu_of(loader) == number
