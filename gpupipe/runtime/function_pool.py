"""A pool of processes that call a function of the user's.

    with pool.call(image) on any thread:
    image ──copy──> shared memory ──> process: seeds the global generators, calls the function
    output <──copy── shared memory <──┘

A pipe holds the numbers of the processes that are free. A call takes one out, and puts it back. So
does native code, which calls the processes without Python's lock: see native/call_stage.cpp. A
process is started at the first call that takes its number.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpupipe.runtime.function_draws import seed_generators
from gpupipe.runtime.function_failures import CallFailedError
from gpupipe.runtime.function_process import FunctionProcess
from gpupipe.runtime.shared_tensors import SharedTensors
from gpupipe.runtime.systems import open_nonblocking_pipe
from gpupipe.runtime.user_functions import find_function

if TYPE_CHECKING:
    from torch import Tensor

_NUMBER = np.dtype(np.uint16)
"""The numbers of processes in the pipe."""
_SECONDS_TO_RECORD = 0.5
"""How long a thread may take to record that its call hung."""
IS_SKIPPED: ContextVar[Callable[[], bool]] = ContextVar("is_skipped", default=lambda: False)
"""Returns whether no one needs the result of a call that waits for a process. Set by an engine for
each sample, it is asked after another call hung: this one may take as long."""


class FunctionPool:
    """Up to `count` processes that call one function.

    A worker of torch's DataLoader is such a process itself, and calls the function in place.

    Args:
        call: "module:name", or the function, class or object itself.
        args: Keyword arguments of the class, or of each call of a function.
        folder: The folder in which the module may lie; None: Python's path alone.
        count: The number of processes, 1 to 1024.
        timeout: Seconds after which a call is ended.
    """

    def __init__(
        self, call: Any, args: Mapping[str, Any], folder: Path | None, count: int, timeout: float
    ) -> None:
        self._arguments = (call, args, folder, count, timeout)
        self._processes: _Processes | None = None
        self._opening = threading.Lock()

    def __reduce__(self) -> Any:
        """Pickle the arguments: another process has a pool of its own."""
        return type(self), self._arguments

    def _open(self) -> _Processes:
        with self._opening:
            if self._processes is None or self._processes.owner != os.getpid():
                call, args, folder, count, _ = self._arguments
                create = lambda memory: FunctionProcess(call, args, folder, memory)  # noqa: E731
                self._processes = _Processes(create, count)
            return self._processes

    def call(self, image: Tensor, field: str, seed: int) -> Tensor:
        """Call the function on a copy of an image, in a process that is free; wait for one.

        Args:
            image: The image, which stays as it is.
            field: The name of its field.
            seed: The seed of `rng` and of the global generators, 0 to 2**53 - 1.

        Raises:
            CallFailedError: The function raises, hangs, forks, or ends its process.
            FunctionMissingError: The function cannot be sent to or imported in the process.
        """
        timeout = self._arguments[4]
        if _is_in_data_loader():
            return self._call_here(image, field, seed)
        with self._open().take() as process:
            output = process.call(image, field, seed, timeout)
        if isinstance(output, CallFailedError):
            raise output
        return output

    def _call_here(self, image: Tensor, field: str, seed: int) -> Tensor:
        """Call the function in this process, which has no other thread that draws."""
        call, args, folder, _, timeout = self._arguments
        function = find_function(call, args, folder)
        seed_generators(seed)
        with _limit_seconds(timeout):
            return function(image.clone(), field, seed)

    def open_native(self) -> tuple[Any, ...]:
        """Start the processes; return the argument `processes` of gpupipe._kernels.call_stage.

        Raises:
            FunctionMissingError: As `call` does.
        """
        pool = self._open()
        pool.start()
        return (pool, *pool.numbers, pool.pipes, pool.list_memories(), self._arguments[4])

    def close(self) -> None:
        """End the processes that are free. A later call starts them again."""
        if self._processes is not None and self._processes.owner == os.getpid():
            self._processes.end_free()


@dataclass(frozen=True)
class ProcessCall:
    """A function for Primitives.call_torch, which an engine may call in the processes itself.

    Attributes:
        run: Calls the function by FunctionPool.call.
        pool: The processes.
        field: The name of the field.
        dtype: The name of the dtype that the function returns.
        channels: The number of channels that it returns; None if it differs between images.
        size: [height, width] that it returns; None for the size of its input.
    """

    run: Callable[[Any, Any], Any]
    pool: FunctionPool
    field: str
    dtype: str
    channels: int | None
    size: tuple[int, ...] | None

    def __call__(self, image: Any, seed: Any) -> Any:
        """Return what the function returns for an image and the two parts of its seed."""
        return self.run(image, seed)


def _is_in_data_loader() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


@contextmanager
def _limit_seconds(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the `with` block, on the main thread, after some seconds."""

    def end(number: int, frame: object) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s, the step's `timeout`")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Processes:
    """The processes of one owner, their memory, and the pipe with the numbers of the free ones.

    Args:
        create: Starts a process that uses some memory.
        count: The maximum number of processes.

    Attributes:
        owner: The process that may use the pool.
        numbers: The descriptors of the pipe of numbers: to take one, and to put it back.
        pipes: The descriptors of requests and answers of each process, int32 (count, 2). They are
                -1 of a process that is not started, or that native code found at fault.
    """

    def __init__(self, create: Callable[[SharedTensors], FunctionProcess], count: int) -> None:
        self._create, self.owner = create, os.getpid()
        self.numbers = open_nonblocking_pipe()
        self.pipes = np.full((count, 2), -1, np.int32)
        self._memories: dict[int, SharedTensors] = {}
        self._processes: dict[int, FunctionProcess] = {}
        self._num_timeouts = 0
        weakref.finalize(self, _end_all, self._processes, self._memories, self.numbers, self.owner)
        self._put(*range(count))

    @contextmanager
    def take(self) -> Iterator[FunctionProcess]:
        """Wait for a process that is free; end it if the `with` block raises.

        Raises:
            CallFailedError: While this call waited, another one hung, and IS_SKIPPED is true.
        """
        num_timeouts = self._num_timeouts
        number = self._wait()
        while self._num_timeouts != num_timeouts:
            num_timeouts = self._num_timeouts
            self._put(number)
            time.sleep(_SECONDS_TO_RECORD)
            if IS_SKIPPED.get()():
                raise CallFailedError("was not called, since another call hung")
            number = self._wait()
        try:
            yield self._start(number)
        except BaseException as e:
            if isinstance(e, CallFailedError) and e.is_timeout:
                self._num_timeouts += 1
            self._end(number)
            raise
        finally:
            self._put(number)

    def _wait(self) -> int:
        """Wait for a process that is free, and take its number."""
        free = select.poll()
        free.register(self.numbers[0], select.POLLIN)
        while (number := self._take_now()) is None:
            free.poll()
        return number

    def _take_now(self) -> int | None:
        """Take the number of a free process; None if all are in use."""
        with suppress(BlockingIOError):
            return int.from_bytes(os.read(self.numbers[0], _NUMBER.itemsize), sys.byteorder)
        return None

    def _put(self, *numbers: int) -> None:
        os.write(self.numbers[1], np.array(numbers, _NUMBER).tobytes())

    def _start(self, number: int) -> FunctionProcess:
        """Return a process, started if it does not run, such as one killed while it was free."""
        if self.pipes[number, 0] < 0 or self._processes[number].has_ended:
            self._end(number)
            if number not in self._memories:
                self._memories[number] = SharedTensors.create()
            self._processes[number] = self._create(self._memories[number])
            self.pipes[number] = self._processes[number].pipes
        return self._processes[number]

    def _end(self, number: int) -> None:
        self.pipes[number] = -1
        process = self._processes.pop(number, None)
        if process is not None:
            process.end()

    def _for_free(self, function: Callable[[int], object]) -> None:
        """Call a function with the numbers of all processes that are free, on several threads."""
        taken = list(iter(self._take_now, None))
        try:
            with ThreadPoolExecutor(max(len(taken), 1)) as threads:
                list(threads.map(function, taken))
        finally:
            self._put(*taken)

    def start(self) -> None:
        """Start the processes that are free and do not run yet, all at once.

        Raises:
            FunctionMissingError: They cannot import the function.
            CallFailedError: One ended while it was started.
        """
        if (self.pipes < 0).any():
            self._for_free(self._start)

    def list_memories(self) -> tuple[mmap | bytearray, ...]:
        """Return the memory of each process; a bytearray(0) of those that never started."""
        each = map(self._memories.get, range(len(self.pipes)))
        return tuple(bytearray() if memory is None else memory.native for memory in each)

    def end_free(self) -> None:
        """End the processes that are free."""
        self._for_free(self._end)


def _end_all(
    processes: dict[int, FunctionProcess],
    memories: dict[int, SharedTensors],
    numbers: tuple[int, int],
    owner: int,
) -> None:
    if os.getpid() == owner:
        for process in processes.values():
            process.end()
    for fd in (*numbers, *(memory.fd for memory in memories.values())):
        os.close(fd)
