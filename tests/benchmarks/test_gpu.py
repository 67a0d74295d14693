import json
import subprocess
from pathlib import Path
from typing import Any

from helpers.forked_python import executable


def rates(*numbers: float) -> list[dict[str, Any]]:
    return [{"images_per_second": n} for n in numbers]


def test_goals_are_against_the_better_hand_and_the_ceiling() -> None:
    import gpu_schedule

    rounds = {
        "gpupipe": rates(90, 100),
        "hand-written-fancy": rates(100, 100),
        "hand-written-region-fancy": rates(50, 60),
    }
    rounds |= {"decode-only-fancy": rates(100, 101), "late": rates(5)}
    found = gpu_schedule.judge({"lfw-affine": rounds, "imagenet_train": {}})
    assert [(g["goal"], round(g["value"], 3), g["holds"]) for g in found["goals"]] == [
        ("lfw-affine: gpupipe / hand-written-fancy", 0.95, False),
        ("lfw-affine: gpupipe / decode-only-fancy", 0.945, False),
    ]
    assert "late" not in found["ratios"]["lfw-affine"]


def test_what_the_budget_does_not_allow_is_left_out(
    photos: Path, tmp_path: Path, benchmarks: Path
) -> None:
    words = [
        "--device",
        "cpu",
        "--quick",
        "--budget",
        "0",
        "--photos",
        str(photos),
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
    ]
    subprocess.run(
        [executable(), str(benchmarks / "gpu.py"), *words],
        check=True,
        capture_output=True,
        timeout=250,
    )
    found = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert found["rounds"] == {"lfw-affine": {}, "imagenet_train": {}}
    assert "round 1, lfw-affine: no time left" in found["left_out"]
