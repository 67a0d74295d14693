"""Measures a loader of the user's, as a contestant of `gpupipe compare --against MODULE:FUNCTION`.

The function returns any iterable of batches, such as a DataLoader. It runs in a process of its own,
on the cores of all other contestants, and is measured as they are.
"""

import os
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from gpupipe import config as configs
from gpupipe.bench.contestant import Contest, ContestOutcome, drop_from_page_cache, main
from gpupipe.bench.machine import Load
from gpupipe.bench.memory import PeakMemory
from gpupipe.errors import EngineError, GpupipeError, name_error
from gpupipe.runtime.user_functions import (
    FunctionMissingError,
    UserFunction,
    find_function,
    import_object,
)

_DEFAULT_PREFETCH = 2
"""Batches that each worker of a DataLoader makes ahead, unless it says otherwise."""
CHECK = "check"
"""The argument of this module with which its process only imports the function."""
_FRAME = re.compile(r'File "(.+)", line (\d+)')


def check(contest: Contest) -> None:
    """Import the function, and do not call it; raise EngineError if it is not there."""
    try:
        import_object(contest.against, _find_folder(contest))
    except FunctionMissingError as e:
        raise EngineError(str(e)) from e


def run(contest: Contest) -> ContestOutcome:
    """Create the loader, warm up, and time the batches.

    With `contest.cold`, the files of the config are dropped from the page cache first.

    Raises:
        EngineError: The function is not there, it or its iterable raises, or there is no batch.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, contest.cores)
    try:
        function = find_function(contest.against, {}, _find_folder(contest))
    except FunctionMissingError as e:
        raise EngineError(str(e)) from e
    if contest.cold:
        drop_from_page_cache(configs.read(contest.config, contest.overrides).source.index())
    try:
        return _measure(contest, function.function)
    except GpupipeError:
        raise
    except (Exception, SystemExit) as e:
        raise EngineError(_describe_error(function, e)) from e


def _find_folder(contest: Contest) -> Path | None:
    """Return the folder of the config, in which the module may lie; None of a shipped config."""
    file = Path(contest.config)
    return file.parent if file.is_file() else None


def _describe_error(function: UserFunction, error: BaseException) -> str:
    """Return what the user's code raised, in one line, with the innermost line of its file.

    A worker of a DataLoader sends its traceback as the text of the exception.
    """
    text = str(error).strip().splitlines()
    sent = [line for line in _FRAME.findall(str(error)) if line[0] == function.source_file]
    raised = name_error(error) if len(text) <= 1 else f"{type(error).__name__}: {text[0]}"
    if not sent:
        return f"raised {raised}{function.find_line(traceback.extract_tb(error.__traceback__))}"
    file, number = sent[-1]
    return f"raised {text[-1]} at {file}:{number}"


def _measure(contest: Contest, made: Any) -> ContestOutcome:
    """Create the loader from what the user's path names, warm up, and time the batches."""
    name = contest.against
    import torch  # it counts as one of the imports, which come before the clock starts

    started = time.perf_counter()
    with PeakMemory() as memory:
        loader = made if hasattr(made, "__iter__") else made()
        if not hasattr(loader, "__iter__"):
            raise EngineError(f"{name} returned a {type(loader).__name__}, which is no iterable")
        batches = _iterate_endlessly(loader, name)
        device = _find_device(next(batches))
        first = time.perf_counter() - started
        workers = int(getattr(loader, "num_workers", 0))
        ahead = workers * int(getattr(loader, "prefetch_factor", None) or _DEFAULT_PREFETCH)
        for _ in islice(batches, max(contest.warm_up, 2 * ahead)):
            pass
        count = max(contest.batches, contest.times_ahead * ahead)
        with Load(device) as load:
            started = time.perf_counter()
            images = sum(map(count_images, islice(batches, count)))
            if device != "cpu":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
        memory.stop()
    return ContestOutcome(
        engine=name,
        device=device,
        parallelism_with_unit=f"{workers} workers",
        images=images,
        batches=count,
        seconds=seconds,
        first_batch_seconds=first,
        cpu_seconds=load.cpu_seconds,
        peak_memory=memory.bytes,
        gpu_utilisation=load.gpu,
        others=load.others,
        batches_ahead=ahead,
        peak_memory_kind=memory.kind,
    )


def _iterate_endlessly(loader: Any, name: str) -> Iterator[Any]:
    """Yield the batches of one epoch after another; raise EngineError after one without any."""
    epoch = 1
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise EngineError(
                f"{name}: its iterable delivered no batch in epoch {epoch}: return one that begins "
                "again with each iter(), as a DataLoader does, and no generator"
            )
        epoch += 1


def count_images(batch: Any) -> int:
    """Return the number of images in a batch of any format.

    That is the length of its first array or tensor: the first value of a dict, the first member of
    a tuple or list. A list of images (C, H, W) has as many as members.
    """
    try:
        return len(_find_first(batch))
    except TypeError:
        kind = type(batch).__name__
        raise EngineError(f"a batch is a {kind}, and its images cannot be counted") from None


def _find_first(batch: Any) -> Any:
    """Return the first array of a batch, or the first list of images."""
    if isinstance(batch, Mapping):
        return _find_first(next(iter(batch.values()), None))
    if isinstance(batch, list | tuple) and batch:
        dims = getattr(batch[0], "ndim", 0)
        is_container = isinstance(batch[0], Mapping | list | tuple)
        is_list_of_images = isinstance(batch, list) and dims == 3
        return _find_first(batch[0]) if is_container or (dims and not is_list_of_images) else batch
    return batch


def _find_device(batch: Any) -> str:
    """Return where a batch is: "cpu" or "gpu:N"."""
    first = _find_first(batch)
    first = first[0] if isinstance(first, list) and first else first
    device: Any = getattr(first, "device", None)
    return f"gpu:{device.index or 0}" if getattr(device, "type", "") == "cuda" else "cpu"


if __name__ == "__main__":
    main(check if CHECK in sys.argv else run)
