"""The contestants of `core.py --engines`, and the goals of engine cpu."""

from typing import Any

import round_statistics

OWN, LIBRARIES = "gpupipe-cpu", "gpupipe-cpu-off"
DALI, HAND = "gpupipe-dali", "hand-written"
OPENCV, YARDSTICK = "opencv", "yardstick"
CONTESTANTS = (OWN, LIBRARIES, DALI, HAND, OPENCV)

TITLES = {
    HAND: "hand-written DALI",
    OPENCV: "threads with OpenCV",
    YARDSTICK: "small C kernels",
    LIBRARIES: "gpupipe-cpu without the extension",
}
_GOALS = {
    OWN: {
        HAND: {"lfw-affine": 1.8, "imagenet_train": 1.5, "imagenet_eval": 2.0},
        "torchvision": {"lfw-affine": 6.0, "imagenet_train": 2.0, "imagenet_eval": 2.1},
        OPENCV: {"lfw-affine": 1.3, "imagenet_train": 1.2, "imagenet_eval": 1.2},
        YARDSTICK: {"lfw-affine": 0.9, "imagenet_train": 1.0, "imagenet_eval": 1.0},
    },
    LIBRARIES: {HAND: {"lfw-affine": 1.3, "imagenet_train": 1.35, "imagenet_eval": 1.7}},
}
_MEMORY_GOAL = 1.0
Rounds = dict[str, list[dict[str, Any]]]


def compare(name: str, rounds: Rounds) -> dict[str, Any]:
    """Return the ratios of a workload's rounds, and whether the goals hold."""
    ratios: dict[str, Any] = {}
    goals = []
    for contestant, others in _GOALS.items():
        for other, bounds in others.items():
            key = next((c for c in rounds if c.startswith(other)), None)
            if key is None:
                continue
            what = f"{_title(contestant)} / {_title(key)}"
            ratios[what] = round_statistics.ratio(rounds[contestant], rounds[key])
            goals.append(round_statistics.goal(what, ratios[what]["median"], bounds[name]))
    what = f"peak memory, {OWN} / {DALI}"
    ratios[what] = round_statistics.ratio(rounds[OWN], rounds[DALI], "peak_memory_mib")
    goals.append(round_statistics.goal(what, ratios[what]["median"], _MEMORY_GOAL, at_most=True))
    return {"ratios": ratios, "goals": goals}


def _title(contestant: str) -> str:
    return TITLES.get(contestant, contestant)
