"""Training recipes on a CPU: gpupipe against the same recipe in torchvision, and against DALI's own
auto_aug.rand_augment, on the same cores.

    # about 55 minutes, with nothing beside it; writes benchmarks/results/recipes.json
    python benchmarks/recipes.py
    python benchmarks/recipes.py --only simclr  # one recipe; writes recipes.simclr.json
    python benchmarks/recipes.py --engine cpu --rounds 3 --seconds 4  # writes recipes.cpu.json
    python benchmarks/recipes.py --quick  # a check that it runs
    # one contestant, one process, one line of JSON
    python benchmarks/recipes.py --one gpupipe simclr
    python benchmarks/recipes.py --one torchvision-pil-2 simclr

Each recipe is the shipped config, with its batch stage, on 1,000 photographs of 500x375; only
`repeats` is left out, so that every contestant reads each photograph once an epoch. Recipes of
torchvision run at the worker count and with the decoder that a preliminary run finds best.
Contestants take turns, in fresh processes; ratios are taken round by round. An image is a
photograph that was read: both views of simclr count as one, and the ten crops of dino_v2.
"""

import argparse
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import measuring
import photos
import round_statistics

_DALI = "hand-written"
_GOALS = {
    "torchvision_resnet50_v2": ("torchvision", 1.2),
    "timm_a2": ("torchvision", 1.2),
    "simclr": ("torchvision", 1.2),
    "dino_v2": ("torchvision", 1.2),
    "randaugment": (_DALI, 1.0),
}
"""What each recipe is measured against, and the least ratio."""
_CPU_GOALS = {"torchvision_resnet50_v2": 4.0, "timm_a2": 4.0, "simclr": 12.0, "dino_v2": 8.0}
"""The least ratio of engine cpu to torchvision."""
_BATCH_SIZE = 128
_OWN_BATCH_SIZES = {"dino_v2": 64}
"""The batch sizes of recipes whose batches of 128 would be large."""
_PRELIMINARY_SECONDS, _WARM_SECONDS = 4.0, 2.0


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        print(json.dumps(one(*arguments.one, arguments)))
        return
    photos.imagenet_like(arguments.data, arguments.images)
    is_cpu = arguments.engine == "cpu"
    names = [arguments.only] if arguments.only else list(_CPU_GOALS if is_cpu else _GOALS)
    recipes = {
        name: compare(
            name,
            functools.partial(_run, name, arguments),
            arguments.rounds,
            arguments.seconds,
            _CPU_GOALS.get(name) if is_cpu else None,
        )
        for name in names
    }
    parts = ["recipes", "cpu" if is_cpu else None, arguments.only]
    path = harness.write(".".join(filter(None, parts)), {"recipes": recipes}, arguments)
    for name, result in recipes.items():
        print(f"\n{name}")
        round_statistics.print_table(result["rounds"])
        round_statistics.print_ratio(f"gpupipe / {result['against']}", result["ratio"])
        round_statistics.print_goals([result["goal"]])
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=5, seconds=8.0)
    harness.add_number(parser, "--images", 1000, "photographs")
    parser.add_argument(
        "--engine", default="dali", choices=("cpu", "dali"), help="default: %(default)s"
    )
    harness.add_selection(parser, _GOALS)
    return harness.parsed(parser, images=300)


# --- one contestant, in a process of its own


def one(contestant: str, recipe: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a contestant does with a recipe: what measuring.measure returns."""
    root = photos.imagenet_like(arguments.data, arguments.images)
    kind, *how = contestant.split("-")
    if kind == "torchvision":
        return _torchvision(recipe, root, how[0], int(how[1]), arguments)
    return (_gpupipe if kind == "gpupipe" else _hand_written)(recipe, root, arguments)


def _gpupipe(recipe: str, root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    import gpupipe.engines.registry
    import gpupipe.loader

    gpupipe.engines.registry.find(arguments.engine)  # before the clock starts
    options: dict[str, Any] = {
        "engine": arguments.engine,
        "batch_size": _find_batch_size(recipe),
        "device": "cpu",
        "repeats": 1,
    }
    data = {"source": "folder", "root": str(root)}
    if recipe == "randaugment":
        config: Any = {"data": data, "pipeline": recipe}
    else:
        config = recipe
        options["data"] = data

    def build() -> Any:
        return gpupipe.load(config, **options)

    return measuring.measure(
        build, lambda batch: len(batch["label"]), arguments.seconds, _WARM_SECONDS
    )


def _hand_written(recipe: str, root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    import baselines
    import nvidia.dali.plugin.pytorch  # noqa: F401  # before the clock starts
    import recipe_baselines

    def build() -> Any:
        return baselines.dali_batches(
            recipe_baselines.dali_rand_augment(root, _BATCH_SIZE, harness.threads())
        )

    return measuring.measure(build, baselines.dali_size, arguments.seconds, _WARM_SECONDS)


def _torchvision(
    recipe: str, root: Path, decoder: str, workers: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    import baselines
    import recipe_baselines

    batch_size = _find_batch_size(recipe)

    def build() -> Any:
        return recipe_baselines.torchvision_batches(recipe, root, decoder, workers, batch_size)

    return measuring.measure(build, baselines.torchvision_size, arguments.seconds, _WARM_SECONDS)


def _find_batch_size(recipe: str) -> int:
    return _OWN_BATCH_SIZES.get(recipe, _BATCH_SIZE)


# --- all of them, compared


Run = Callable[[str, float], dict[str, Any]]
"""Runs a contestant for least seconds, and returns what measuring.measure returns."""


def compare(
    recipe: str, run: Run, rounds: int, seconds: float, least: float | None = None
) -> dict[str, Any]:
    """A recipe's rounds, and what they say. `least` takes the place of the least ratio."""
    other, bound = _GOALS[recipe]
    preliminary: dict[str, Any] = {}
    if other == "torchvision":
        preliminary = {c: run(c, min(seconds, _PRELIMINARY_SECONDS)) for c in _data_loaders()}
        other = max(preliminary, key=lambda c: preliminary[c]["images_per_second"])
        harness.say(f"{recipe}: the best DataLoader is {other}")
    results = harness.interleaved(lambda c: run(c, seconds), ["gpupipe", other], rounds, recipe)
    what, ratio = f"gpupipe / {other}", round_statistics.ratio(*results.values())
    return {
        "against": other,
        "disturbed": round_statistics.disturbed({c: [r] for c, r in preliminary.items()} | results),
        "preliminary": preliminary,
        "rounds": results,
        "ratio": ratio,
        "goal": round_statistics.goal(f"{recipe}: {what}", ratio["median"], least or bound),
    }


def _data_loaders() -> list[str]:
    """The DataLoaders to try, with half as many workers as cores to one more than cores."""
    cores = harness.threads()
    workers = sorted({max(1, cores // 2), cores, cores + 1})
    return [f"torchvision-{decoder}-{n}" for decoder in ("tensor", "pil") for n in workers]


def _run(
    recipe: str, arguments: argparse.Namespace, contestant: str, seconds: float
) -> dict[str, Any]:
    size = ["--seconds", str(seconds)]
    return harness.fresh(
        __file__,
        "--one",
        contestant,
        recipe,
        *size,
        *harness.passed_on(arguments, "images", "engine"),
    )


if __name__ == "__main__":
    main()
