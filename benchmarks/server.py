"""How fast batches get from a data processing server to its client, in another process on this
machine.

    python benchmarks/server.py  # all ways, interleaved rounds: benchmarks/results/server.json
    python benchmarks/server.py --quick

The batches are 256 x 3 x 250 x 250, uint8 (48 MB) and float32 (192 MB), and are made in no time:
the server's engine hands out the same few tensors again and again, so that what is measured is the
transport alone, with plans, leases and acknowledgements as always. The consumer looks at one number
of each batch and lets it go. Beside it, with the same tensors: torch's multiprocessing.Queue (its
shared memory, a new one for every batch) and pickle over a pipe.

busy at 600 MB/s: the CPU time of the consumer's main thread, as a share, at a stream of 600 MB/s
(its CPU seconds for a byte, times 600 MB).
"""

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import harness
import round_statistics

SHAPE = (256, 3, 250, 250)
WAYS = ("shm", "tcp", "ipc", "curve", "torch queue", "pickle pipe")
GOALS = {"shm": 5.0, "tcp": 1.5, "curve": 0.7}


def tensors(dtype: str, count: int = 3) -> list[Any]:
    """Batches, made once."""
    import torch

    return [
        torch.randint(0, 255, SHAPE, dtype=torch.uint8).to(getattr(torch, dtype))
        for _ in range(count)
    ]


# --- the sending side


def serve(way: str, dtype: str, folder: str) -> None:
    """A server whose engine has its batches ready."""
    import torch

    import gpupipe
    from gpupipe.engines.batch import labels_and_values
    from gpupipe.server.options import ServerOptions
    from gpupipe.server.start import run

    ready = tensors(dtype)
    config = {
        "data": {"source": "file_list", "file": f"{folder}/list.csv", "root": folder},
        "pipeline": ["decode"],
    }
    loader = gpupipe.load(config, batch_size=SHAPE[0], engine="dataloader", workers=0, device="cpu")

    def batches(plans: Any) -> Iterator[Any]:
        for n, plan in enumerate(plans):
            values = labels_and_values(loader.index, plan, torch.device("cpu"))
            yield plan, {"image": ready[n % len(ready)], **values}

    # nothing is decoded here
    loader.engine.batches = batches  # type: ignore[method-assign, assignment]
    address = f"ipc://{folder}/socket" if way == "ipc" else "tcp://127.0.0.1:0"
    keys: dict[str, Any] = (
        {"keys": Path(folder) / "server.key_secret", "allowed": Path(folder) / "allowed"}
        if way == "curve"
        else {}
    )
    run(
        loader,
        ServerOptions(address=address, hwm=4, **keys),
        lambda server: print(json.dumps(server.address), flush=True),
    )


def queue_sender(dtype: str, queue: Any, count: int, done: Any) -> None:
    ready = tensors(dtype)
    for n in range(count):
        queue.put(ready[n % 3].clone())  # one that is not shared yet, as every batch is
    done.wait()


def pipe_sender(dtype: str, pipe: Any, count: int) -> None:
    ready = [tensor.numpy() for tensor in tensors(dtype)]
    for n in range(count):
        pipe.send(ready[n % 3])


# --- the receiving side


def consume(batches: Iterator[Any], seconds: float) -> dict[str, Any]:
    """GB/s of images over at least `seconds`, behind a few batches that are not counted, and the
    CPU seconds of this thread and process for a GB.
    """
    for _ in range(6):
        float(next(batches).flatten()[-1])
    received, count = 0, 0
    started, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
    while time.perf_counter() - started < seconds:
        image = next(batches)
        float(image.flatten()[-1] if hasattr(image, "flatten") else image)
        received, count = received + image.nbytes, count + 1
        del image
    wall, gb = time.perf_counter() - started, received / 1e9
    mine = (time.thread_time() - thread) / gb
    return {
        "gb_per_second": gb / wall,
        "batches": count,
        "main_thread_s_per_gb": mine,
        "busy_at_600_mb": 0.6 * mine,
        "process_s_per_gb": (time.process_time() - process) / gb,
    }


def over_server(way: str, dtype: str, seconds: float) -> dict[str, Any]:
    import gpupipe

    with tempfile.TemporaryDirectory() as folder:
        keys = prepare_folder(Path(folder), way)
        with subprocess.Popen(
            [sys.executable, __file__, "--serve", way, dtype, folder],
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            try:
                assert server.stdout is not None
                address = json.loads(server.stdout.readline())
                with gpupipe.connect(
                    address, device="cpu", hwm=4, transport="shm" if way == "shm" else "tcp", **keys
                ) as loader:
                    return consume(
                        (batch["image"] for _ in repeat(None) for batch in loader), seconds
                    )
            finally:
                server.terminate()


def prepare_folder(folder: Path, way: str) -> dict[str, Any]:
    """An image list that nobody reads, and keys where the way needs them."""
    from PIL import Image

    from gpupipe.protocol import peers

    Image.new("RGB", (8, 8)).save(folder / "dot.png")
    (folder / "list.csv").write_text("path,label\n" + "dot.png,0\n" * (SHAPE[0] * 400))
    if way != "curve":
        return {}
    _, secret = peers.create_keys(folder / "allowed", "client")
    server, _ = peers.create_keys(folder, "server")
    return {"key": secret, "server_key": server}


def over_queue(dtype: str, seconds: float) -> dict[str, Any]:
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    queue, done = context.Queue(2), context.Event()
    process = context.Process(
        target=queue_sender, args=(dtype, queue, 1_000_000, done), daemon=True
    )
    process.start()
    try:
        return consume((queue.get() for _ in repeat(None)), seconds)
    finally:
        process.kill()
        process.join()


def over_pipe(dtype: str, seconds: float) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=pipe_sender, args=(dtype, theirs, 1_000_000), daemon=True)
    process.start()
    try:
        return consume((ours.recv() for _ in repeat(None)), seconds)
    finally:
        process.kill()
        process.join()


def measure(way: str, dtype: str, seconds: float) -> dict[str, Any]:
    """In this process, which is a fresh one."""
    found = {"torch queue": over_queue, "pickle pipe": over_pipe}.get(way)
    return found(dtype, seconds) if found else over_server(way, dtype, seconds)


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    harness.add_number(parser, "--seconds", 3.0, "a measurement takes at least")
    parser.add_argument(
        "--serve",
        nargs=3,
        metavar=("WAY", "DTYPE", "FOLDER"),
        help="be the server of one measurement",
    )
    parser.add_argument(
        "--measure",
        nargs=2,
        metavar=("WAY", "DTYPE"),
        help="make one measurement, and print it as JSON",
    )
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve)
        return
    harness.prepare(arguments)
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure, arguments.seconds)))
        return
    rounds = 1 if arguments.quick else arguments.rounds
    results: dict[str, dict[str, list[dict[str, Any]]]] = {
        d: {way: [] for way in WAYS} for d in ("uint8", "float32")
    }
    for number in range(rounds):
        for dtype, ways in results.items():
            for way, found in ways.items():
                found.append(
                    harness.fresh(
                        __file__,
                        "--measure",
                        way,
                        dtype,
                        "--seconds",
                        str(0.5 if arguments.quick else arguments.seconds),
                        limit=120,
                    )
                )
                harness.say(
                    f"round {number + 1}/{rounds}: {dtype} {way} "
                    f"{found[-1]['gb_per_second']:.2f} GB/s, load {os.getloadavg()[0]:.1f}"
                )
    report(results, arguments)


def report(results: dict[str, dict[str, list[dict[str, Any]]]], arguments: Any) -> None:
    """Medians and ranges on the screen, and all in the JSON."""
    goals = []
    for dtype, ways in results.items():
        print(f"{dtype}, batches of {' x '.join(map(str, SHAPE))}")
        for way, found in ways.items():
            rates = [f["gb_per_second"] for f in found]
            busy = statistics.median(f["busy_at_600_mb"] for f in found)
            print(
                f"  {way:12} {statistics.median(rates):6.2f} GB/s ({min(rates):.2f} to "
                f"{max(rates):.2f}), main thread {busy:.1%} busy at 600 MB/s"
            )
            if way in GOALS:
                goals.append(
                    round_statistics.goal(
                        f"{dtype} over {way}, GB/s", statistics.median(rates), GOALS[way]
                    )
                )
                goals.append(
                    round_statistics.goal(
                        f"{dtype} over {way}, consumer's main thread busy at 600 MB/s",
                        busy,
                        0.25,
                        at_most=True,
                    )
                )
    round_statistics.print_goals(goals)
    print(harness.write("server", {"shape": SHAPE, "results": results, "goals": goals}, arguments))


if __name__ == "__main__":
    main()
