"""Operations of a policy that move pixels: one warp with a matrix per sample, or a branch of
DALI's conditionals for each operation.

    # a minute; writes benchmarks/results/policy_branches.json
    python benchmarks/policy_branches.py

A slot of TrivialAugmentWide on photographs of 224x224 that are decoded already, on one CPU thread,
with bilinear pixels: once all its operations, once only those that move pixels. The contestants
take turns, a batch each.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import harness
import numpy as np
import photos
import round_statistics
from PIL import Image

from gpupipe.augment import policy_ops
from gpupipe.augment.color_ops import COLOR_OPS
from gpupipe.dataset.spec import Spec
from gpupipe.engines.dali.operators.image import ImageTracer
from gpupipe.steps.auto_augment import TrivialAugmentWide

_SIDE, _BATCH_SIZE = 224, 128
_STEP = TrivialAugmentWide(interpolation="bilinear")
_KINDS = {"all operations": policy_ops.OPS, "moves only": ("Identity", *policy_ops.GEOMETRY)}


def main() -> None:
    arguments = harness.parsed(harness.contest(__doc__, rounds=40, seconds=0.0))
    harness.prepare(arguments)
    images = _images(arguments)
    result = {kind: measure(names, images, arguments.rounds) for kind, names in _KINDS.items()}
    path = harness.write("policy_branches", {"batch_size": _BATCH_SIZE, "kinds": result}, arguments)
    for kind, found in result.items():
        print(kind)
        round_statistics.print_ratio("one warp / a branch for each", found["ratio"])
    print(f"written to {path}")


def _images(arguments: argparse.Namespace) -> list[Any]:
    root = photos.imagenet_like(arguments.data, 300 if arguments.quick else 1000)
    files = sorted(root.glob("*/*.jpg"))[:_BATCH_SIZE]
    return [np.array(Image.open(f).convert("RGB").crop((0, 0, _SIDE, _SIDE))) for f in files]


def measure(names: tuple[str, ...], images: list[Any], rounds: int) -> dict[str, Any]:
    """Batches of both contestants in turn, in images a second of CPU time."""
    contestants = {
        "one warp": _pipeline(images, _draw(names, len(images)), policy_ops.lower_op),
        "a branch for each": _pipeline(images, _draw(names, len(images)), lower_each),
    }
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for run_number in range(rounds + 1):
        for name, pipe in contestants.items():
            started = time.process_time()
            pipe.run()
            rate = len(images) / (time.process_time() - started)
            if run_number:  # the first allocates
                results[name].append({"images_per_second": rate})
    return {
        name: round_statistics.median(found, "images_per_second") for name, found in results.items()
    } | {"ratio": round_statistics.ratio(results["one warp"], results["a branch for each"])}


def lower_each(image: Any, names: Any, op: Any, value: Any, warping: policy_ops.Warping) -> None:
    """policy_ops.lower_op, with a branch for every operation."""
    branches: list[Callable[[Any], None]] = [lambda part: None]
    for name in policy_ops.OPS[1:]:
        if name in policy_ops.GEOMETRY:
            branches.append(lambda part: policy_ops.lower_move(part, op, value, warping))
        else:
            branches.append(partial(_lower_color, name=name, value=value))
    used = [n for n, name in enumerate(policy_ops.OPS) if n == 0 or name in names]
    branch_of_op = np.zeros(len(branches), np.int32)
    branch_of_op[used] = np.arange(len(used))
    image.switch(branch_of_op[op], [branches[n] for n in used])


def _lower_color(image: Any, name: str, value: Any) -> None:
    function = policy_ops.COLORS[name]
    rows = COLOR_OPS[function].values
    image.color(function, *(np.clip(value, r.min, r.max).astype(r.dtype) for r in rows))


def _draw(names: tuple[str, ...], count: int) -> tuple[Any, Any]:
    """Operations of the step for so many samples, of those in `names`."""
    drawn = _STEP.sample(np.random.default_rng(0).random((100 * count, _STEP.num_uniforms)))
    op, value = drawn["op"][:, 0], drawn["value"][:, 0]
    kept = np.isin(op, policy_ops.op_numbers(names))
    return op[kept][:count], value[kept][:count]


def _pipeline(images: list[Any], drawn: tuple[Any, Any], lower: Callable[..., None]) -> Any:
    from nvidia.dali import Pipeline, fn, types

    def feed(arrays: list[Any], layout: str = "") -> Any:
        dtype, ndim = types.to_dali_type(str(arrays[0].dtype)), arrays[0].ndim
        return fn.external_source(lambda: arrays, dtype=dtype, ndim=ndim, layout=layout)

    pipe = Pipeline(batch_size=len(images), num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipe:
        size = np.full((len(images), 2), float(_SIDE))
        node = feed(images, "HWC")
        image = ImageTracer(size, "cpu")
        image.spec = Spec.of_image(3)
        lower(image, _STEP.op_names, *drawn, _STEP.warping)
        graph = image.subgraph()
        pipe.set_outputs(graph.add_to(node, (feed(list(array)) for array in graph.arrays)))
    return pipe


if __name__ == "__main__":
    main()
