"""What functions of the user's cost: seconds an image, and the share that holds the lock."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from gpupipe.errors import counted
from gpupipe.loading.assembly import ResolvedConfig
from gpupipe.pipeline.user_calls import list_calls
from gpupipe.runtime.ranks import cores

_SECONDS = 0.2
"""How long each of the two measurements of a function takes, at least."""


def describe_calls(resolved: ResolvedConfig) -> Iterator[str]:
    """Yield a line for each step that calls a function of the user's: its cost, and where it runs.

    The function runs on a drawn image.
    """
    engine = resolved.engine
    for call in list_calls(resolved.config.pipeline):
        seconds, share = measure_call(call.try_once)
        cost = f"python: {call.name} takes {seconds * 1e6:,.0f} us an image"
        if call.workers:
            yield f"{cost}, in {counted(call.workers, 'process', 'processes')} of its own"
            continue
        lock = "" if share is None else f", and holds Python's lock for {share:.0%} of them"
        place = f", on one core, since engine: {engine.name} calls it in place"
        yield f"{cost}{lock}{place if engine.traits.calls_in_place else ''}"


def measure_call(call: Callable[[], object]) -> tuple[float, float | None]:
    """Measure a function alone, and on two threads at once, which wait for Python's lock.

    Returns:
        The seconds of a call, and the share of them in which it holds the lock, 0 to 1. The share
        is None if this process has one core only.
    """
    call()
    count, seconds = 1, 0.0
    while seconds < _SECONDS:
        count = max(count * 2, int(count * 1.2 * _SECONDS / seconds)) if seconds else 1
        seconds = _time(call, count)
    if cores() < 2:
        return seconds / count, None
    with ThreadPoolExecutor(2) as threads:
        begin = time.perf_counter()
        list(threads.map(lambda _: _time(call, count), range(2)))
        together = time.perf_counter() - begin
    return seconds / count, min(1.0, max(0.0, together / seconds - 1))


def _time(call: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - begin
