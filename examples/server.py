"""What a data processing server is for: preprocessing beside the training loop, and not inside it.

    pip install '.[server]'
    python examples/server.py --rounds 3 --plot server-pipelining.png

A data stream that is slowed down by 5 ms a batch, a training step of 10 ms, 5 epochs: in one
process they take turns, so that the time is the sum; with a server, batches wait in a buffer when
the step asks for them, and the time is that of training alone. Both only sleep: what shows is the
overlap.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from PIL import Image

import gpupipe

STREAM, TRAINING = 0.005, 0.010
EPOCHS = 5


def slow_loader(folder: str) -> gpupipe.Loader:
    """Batches of one little image, each of which comes 5 ms later than it would."""
    loader = gpupipe.load(
        {"data": {"source": "folder", "root": folder}, "pipeline": ["decode"]},
        batch_size=1,
        engine="dataloader",
        workers=0,
        device="cpu",
    )
    batches = loader.engine.batches

    def slowed(plans: Any) -> Any:
        for made in batches(plans):
            time.sleep(STREAM)
            yield made

    loader.engine.batches = slowed  # type: ignore[method-assign]
    return loader


def train(epoch: Callable[[], Iterable[Any]]) -> float:
    """Seconds of training over 5 epochs of batches."""
    started = time.perf_counter()
    for _ in range(EPOCHS):
        for _ in epoch():
            time.sleep(TRAINING)
    return time.perf_counter() - started


def with_server(folder: str, port: int) -> float:
    """The same over a server in a process of its own."""
    server = subprocess.Popen([sys.executable, __file__, "--serve", folder, "--port", str(port)])
    try:
        with gpupipe.connect(f"tcp://127.0.0.1:{port}", device="cpu", hwm=10) as loader:
            return train(lambda: loader)
    finally:
        server.terminate()
        server.wait()


def in_process(folder: str) -> float:
    """The same in one process."""
    with slow_loader(folder) as loader:
        return train(lambda: loader)


def plot(seconds: dict[str, list[float]], path: Path) -> None:
    """A bar for each, its median, and a dot for every round."""
    import statistics

    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    axes.barh(
        list(seconds),
        [statistics.median(s) for s in seconds.values()],
        color=["#9aa5b1", "#2a7de1", "#d9822b"],
    )
    for n, rounds in enumerate(seconds.values()):
        axes.plot(rounds, [n] * len(rounds), "k.", markersize=5)
    axes.invert_yaxis()
    axes.set_xlabel(
        f"seconds for {EPOCHS} epochs: 10 ms a training step, 5 ms a batch of the data stream"
    )
    figure.savefig(path, dpi=150)


def main() -> None:
    """Rounds of all three."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=200, help="an epoch")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--port", type=int, default=5557)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", metavar="FOLDER", help="be the server")
    arguments = parser.parse_args()
    if arguments.serve:
        gpupipe.start_server(slow_loader(arguments.serve), port=arguments.port)
        return
    seconds: dict[str, list[float]] = {
        "training alone": [],
        "with a server": [],
        "in one process": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "class").mkdir()
        for n in range(arguments.batches):
            Image.new("RGB", (32, 32), (n % 256, 0, 0)).save(Path(folder) / "class" / f"{n:04}.png")
        for _ in range(arguments.rounds):
            seconds["training alone"].append(train(lambda: range(arguments.batches)))
            seconds["with a server"].append(with_server(folder, arguments.port))
            seconds["in one process"].append(in_process(folder))
    for name, found in seconds.items():
        times = ", ".join(
            f"{s / a:.2f}" for s, a in zip(found, seconds["training alone"], strict=True)
        )
        print(f"{name:15} {', '.join(f'{s:.2f} s' for s in found)}; {times} times training alone")
    if arguments.plot:
        plot(seconds, arguments.plot)
    if arguments.json:
        from gpupipe.bench.machine import machine

        arguments.json.write_text(
            json.dumps(
                {
                    "machine": machine(),
                    "seconds": seconds,
                    "batches": arguments.batches,
                    "epochs": EPOCHS,
                },
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
