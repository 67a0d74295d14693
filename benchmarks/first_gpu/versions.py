"""What the machine has: packages, driver, GPU, processor, and the text of nvidia-smi."""

import re
import subprocess
from importlib import metadata
from typing import Any

import harness
import part


def main() -> None:
    arguments = part.options(__doc__).parse_args()
    part.prepare(arguments)
    result = part.Part("versions", arguments)
    from gpupipe.bench.machine import machine

    packages = {(d.metadata["Name"] or "?").lower(): d.version for d in metadata.distributions()}
    result.figures(machine=machine(), packages=dict(sorted(packages.items())))
    result.figures(commit=harness._commit(), nvidia_smi=_said("nvidia-smi"), lscpu=_said("lscpu"))
    found = _torch()
    result.figures(torch=found)
    builds = re.compile(r"nvidia-dali-(?!tf-plugin)(.+-)?cuda\d+")
    dali = [f"{name} {version}" for name, version in packages.items() if builds.fullmatch(name)]
    result.check("one build of DALI is installed", len(dali) == 1, ", ".join(dali) or "none")
    if arguments.device == "gpu":
        result.check("torch sees a GPU", bool(found["gpus"]), ", ".join(found["gpus"]) or "none")
    result.headline(", ".join([*found["gpus"], f"torch {found['version']}", *dali]))
    result.finish()


def _said(*command: str) -> str:
    """What a command prints, or why it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    return done.stdout or done.stderr


def _torch() -> dict[str, Any]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cards = [torch.cuda.get_device_properties(n) for n in range(count)]
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": [card.name for card in cards],
        "memory_mib": [card.total_memory >> 20 for card in cards],
        "capability": [f"{card.major}.{card.minor}" for card in cards],
    }


if __name__ == "__main__":
    main()
