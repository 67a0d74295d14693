"""GPU throughput: gpupipe against DALI pipelines written by hand, decoding alone, and torchvision.

    python benchmarks/gpu.py  # within 400 s; writes benchmarks/results/gpu.json after every run
    # photographs from DIR/CLASS/*.jpg; without any, drawn images, and it says so
    python benchmarks/gpu.py --photos DIR --out X
    python benchmarks/gpu.py --device cpu --quick  # a check that it runs, without a GPU
    # needs no GPU: makes the nodes of the hand-written graphs
    python benchmarks/gpu.py --check-graphs
    python benchmarks/gpu.py --one hand-written-fancy@load=0.65 lfw-affine

Answers: images a second with the batch on the GPU (torch.cuda.synchronize() ends every pass), peak
GPU memory, power and how busy the decoders are (NVML), and whether gpupipe's goals hold against a
hand that does the same work ("-fancy" upsamples chroma as gpupipe and torchvision do) and against
decoding alone. "-region" decodes only what a crop needs, and runs only where gpupipe does so;
decode-only-region is its own ceiling. Sweeps, each in one process: hw_decoder_load, threads,
hybrid_huffman_threshold. Rounds come first; what the budget does not allow is left out, and listed.
gpu_contestants.py has the names.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import baselines
import gpu_contestants
import gpu_measuring
import harness
from gpu_schedule import Schedule, images_root, need_gpu, sweep_contestants

_WARM_SECONDS = 1.0
_SWEEP_WARM_SECONDS, _SWEEP_SECONDS = 0.5, 1.5
_GRAPHS = (
    baselines.affine,
    baselines.train_whole,
    baselines.train_region,
    baselines.evaluate,
    baselines.decode_only,
    baselines.decode_region,
)


def main() -> None:
    started = time.monotonic()
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.check_graphs:
        check_graphs()
    elif arguments.one:
        need_gpu(arguments.device)
        print(json.dumps(one(*arguments.one, arguments)))
    elif arguments.sweep:
        need_gpu(arguments.device)
        sweep(*arguments.sweep, arguments)
    else:
        Schedule(arguments, started).run()


def _arguments() -> argparse.Namespace:
    parser = harness.options(__doc__)
    parser.add_argument(
        "--device",
        choices=["gpu", "cpu"],
        default="gpu",
        help="the first GPU, or the CPU (default: %(default)s)",
    )
    parser.add_argument(
        "--photos",
        type=Path,
        help="folder of class folders with photographs (default: GPUPIPE_PHOTOS, else "
        "those that tests/helpers/photographs.py cuts)",
    )
    harness.add_number(
        parser, "--rounds", 3, "most interleaved rounds of gpupipe and hand-written DALI"
    )
    harness.add_number(parser, "--seconds", 3.0, "least seconds of measured passes")
    harness.add_number(
        parser, "--budget", 390.0, "seconds that all of it may take; the rest is left out"
    )
    harness.add_number(parser, "--images", 12_000, "images of a set, each file under 4 names")
    parser.add_argument(
        "--one",
        nargs=2,
        metavar=("CONTESTANT", "WORKLOAD"),
        help="run one contestant here, and print one line of JSON",
    )
    parser.add_argument(
        "--sweep",
        nargs=2,
        metavar=("SWEEP", "WORKLOAD"),
        help="run a sweep here, and print a line of JSON for each contestant",
    )
    parser.add_argument(
        "--check-graphs",
        action="store_true",
        help="make the hand-written graphs' nodes, without a GPU, and end",
    )
    arguments = harness.parsed(parser, images=120, seconds=0.1)
    if arguments.photos:
        os.environ["GPUPIPE_PHOTOS"] = str(arguments.photos.resolve())
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return arguments


def check_graphs() -> None:
    """Make every hand-written graph for a GPU inside a pipeline that has none: wrong operator names
    and arguments show.
    """
    from nvidia.dali import Pipeline, fn

    for graph in _GRAPHS:
        with Pipeline(batch_size=1, num_threads=1, device_id=None):
            encoded, labels = fn.readers.file(file_root=".", random_shuffle=True, name="reader")
            made = graph(
                encoded,
                "gpu",
                hw_decoder_load=0.9,
                jpeg_fancy_upsampling=True,
                hybrid_huffman_threshold=1,
            )
            print(
                f"{graph.__name__}: ends on the {made.device}, labels on the {labels.gpu().device}"
            )


def one(contestant: str, workload: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What gpu_measuring.measure returns."""
    root, _ = images_root(workload, arguments)
    made = gpu_contestants.contestant(contestant, workload, root, arguments.device)
    warm_seconds = min(arguments.seconds, _WARM_SECONDS)
    return gpu_measuring.measure(made, arguments.device, arguments.seconds, warm_seconds)


def sweep(name: str, workload: str, arguments: argparse.Namespace) -> None:
    """Print a line of JSON for each contestant of a sweep.

    They share a process, so memory is not told.
    """
    root, _ = images_root(workload, arguments)
    for contestant in sweep_contestants(name)[: 2 if arguments.quick else None]:
        made = gpu_contestants.contestant(contestant, workload, root, arguments.device)
        seconds = min(arguments.seconds, _SWEEP_SECONDS)
        warm_seconds = min(arguments.seconds, _SWEEP_WARM_SECONDS)
        found = gpu_measuring.measure(made, arguments.device, seconds, warm_seconds)
        kept = {
            key: found[key]
            for key in ("images_per_second", "cpu_seconds_per_1000", "gpu")
            if key in found
        }
        print(json.dumps({"contestant": contestant, **kept}), flush=True)
        del made
        gpu_measuring.release_memory(arguments.device)


if __name__ == "__main__":
    main()
