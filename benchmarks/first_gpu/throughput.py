"""benchmarks/gpu.py: images a second against DALI written by hand, and sweeps of its settings."""

import json
import os
import subprocess
import sys
from typing import Any

import harness
import part
import round_statistics

_SPARE_SECONDS = 15.0
_NO_TIME = "no time left"


def main() -> None:
    arguments = part.options(__doc__).parse_args()
    part.prepare(arguments)
    result = part.Part("throughput", arguments)
    budget = float(os.environ.get("PART_SECONDS", "410")) - _SPARE_SECONDS
    script = str(harness.REPOSITORY / "benchmarks" / "gpu.py")
    words = ["--out", str(arguments.out.absolute()), "--data", str(arguments.data)]
    words += ["--device", arguments.device, "--budget", str(budget)]
    words += ["--quick"] if arguments.quick else []
    done = subprocess.run([sys.executable, script, *words], check=False)
    result.check("benchmarks/gpu.py ends", done.returncode == 0, f"status {done.returncode}")
    found: dict[str, Any] = json.loads((arguments.out / "gpu.json").read_text(encoding="utf-8"))
    failed = [why for why in found["left_out"] if _NO_TIME not in why]
    result.figures(**{key: found[key] for key in ("data", "goals", "left_out", "wall_seconds")})
    result.check("no contestant failed", not failed, "; ".join(failed)[:2000])
    for workload, rounds in found["rounds"].items():
        result.check(f"{workload}: gpupipe was measured", bool(rounds.get("gpupipe")))
    if arguments.device == "gpu":
        for goal in found["goals"]:
            what = f"{goal['goal']} is at least {goal['bound']:g}"
            result.check(what, goal["holds"], f"{goal['value']:.3f}")
    result.headline("; ".join(_rate(w, rounds) for w, rounds in found["rounds"].items()))
    result.finish()


def _rate(workload: str, rounds: dict[str, list[dict[str, Any]]]) -> str:
    own = rounds.get("gpupipe")
    if not own:
        return f"{workload} was not measured"
    return f"{workload} {round_statistics.median(own, 'images_per_second'):,.0f} images/s"


if __name__ == "__main__":
    main()
