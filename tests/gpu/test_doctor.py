"""gpupipe doctor on a machine with a GPU."""

import os
import subprocess
import sys

import pynvml
import torch

from gpupipe.doctor import checks

FIELDS = (
    "print('\\n'.join('\\t'.join([f.subject, f.status, f.observation, f.advice]) for f in "
    "doctor.run_checks()))"
)


def test_a_gpu_machine_tells_card_driver_and_what_was_probed() -> None:
    findings = {f.subject: f for f in checks.run_checks()}
    pynvml.nvmlInit()
    assert findings["driver"].observation.startswith(pynvml.nvmlSystemGetDriverVersion())
    assert findings["driver"].status == "ok"
    assert torch.cuda.get_device_name(0) in findings["GPU 0"].observation
    assert findings["GPU 0: DALI"].status == "ok"
    region = findings["GPU 0: region-of-interest decoding"]
    assert region.status == ("ok" if region.observation.startswith("works") else "warning")
    assert "counted by nvJPEG" in findings["GPU 0: hardware JPEG decoder"].observation


def test_hidden_gpus_are_a_warning() -> None:
    command = [sys.executable, "-c", f"from gpupipe.doctor import checks as doctor\n{FIELDS}"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    status, found, advice = {
        line.split("\t")[0]: line.split("\t")[1:] for line in done.stdout.splitlines()
    }["GPU"]
    assert status == "warning"
    assert "hidden by CUDA_VISIBLE_DEVICES=''" in found
    assert "unset" in advice
