"""A process in which the machine fails, and gpupipe says so: run by tests with what is to fail.

    python -m helpers.broken_machine WHAT FOLDER '{"engine": "dali", ...}'

It prints the class and the message of the error in a line each, and how many samples were skipped.
"""

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from helpers import forked_python


def run_on_broken_machine(what: str, root: Path, options: dict[str, Any]) -> tuple[str, str, int]:
    """Run this script, and return what it prints.

    It runs again where the C library ended it: that aborts a process that has no memory left for
    the variables of a thread, which a thread may only ask for after the limit is set.
    """
    for _ in range(5):
        done = forked_python.run(
            ["-m", __name__, what, root, json.dumps(options)],
            cwd=Path(__file__).parents[1],
            env=os.environ | {"GPUPIPE_CACHE": str(root / "cache")},
            timeout=300,
        )
        if "cannot allocate memory for thread-local data" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    name, message, skipped = done.stdout.splitlines()[-3:]
    return name, message, int(skipped)


def without_decoders(folder: Path) -> None:
    """nvImageCodec finds none of its extensions."""
    os.environ["NVIMGCODEC_EXTENSIONS_PATH"] = str(folder)


def without_memory() -> None:
    """Some 100 MB more than the process has now."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    now = (
        next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmSize"))
        << 10
    )
    resource.setrlimit(resource.RLIMIT_AS, (now + (100 << 20),) * 2)


def without_files() -> None:
    """No file more than are open now."""
    with open(os.devnull) as lowest_free:
        limit = lowest_free.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def with_broken_cuda() -> None:
    """A kernel reads outside its array: no CUDA call of this process succeeds from then on."""
    import torch

    try:
        torch.arange(4, device="cuda")[torch.tensor([10**6], device="cuda")].cpu()
    except RuntimeError as e:
        print(str(e).splitlines()[0], file=sys.stderr)


def without_gpu_memory() -> None:
    """64 MB are left on the GPU."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    taken.append(torch.empty(free - (64 << 20), dtype=torch.uint8, device="cuda"))


taken: list[Any] = []


def main(what: str, folder: Path, options: dict[str, Any]) -> None:
    if what == "without_decoders":
        without_decoders(folder / "nothing")
    import gpupipe

    steps = ["decode", {"to_dtype": {"dtype": "float32"}}]
    config = {"data": {"source": "folder", "root": folder / "images"}, "pipeline": steps}
    try:
        run(what, folder, config, options)
    except gpupipe.GpupipeError:
        os._exit(0)
    print("nothing failed")


def run(what: str, folder: Path, config: dict[str, Any], options: dict[str, Any]) -> None:
    """Raise the error of gpupipe, unless closing the loader raises another one over it."""
    import gpupipe

    with gpupipe.load(config, **options) as loader:
        iterator = iter(loader)
        if what == "with_broken_cuda":
            next(iterator)
        if what != "without_decoders":
            globals()[what]()
        try:
            for _ in range(2):
                for _ in iterator:
                    pass
                iterator = iter(loader)
        except gpupipe.GpupipeError as e:
            print(type(e).__name__, str(e), len(loader.engine.quarantine), sep="\n", flush=True)
            if loader.engine.name == "dali":
                os._exit(0)  # the destructors of a DALI pipeline may end the process
            raise


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
