"""A process that calls one function of the user's; function_process.py starts it.

The process reads requests from one pipe and writes answers to another, both JSON. Pixels go through
memory that it shares with the process that started it. The first message is pickled: it comes from
that process, through a pipe that no other process has, and holds the function.

A function that forks is at fault: the copy would go on with the loop of its parent.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import pickle
import select
import signal
import sys
import threading
import traceback
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from gpupipe.runtime.function_draws import seed_generators
from gpupipe.runtime.function_failures import CallFailedError, explain_failure
from gpupipe.runtime.process import close_in_forks
from gpupipe.runtime.user_functions import FunctionMissingError, UserFunction, find_function

if TYPE_CHECKING:
    from torch import Tensor

STACK_SIGNAL = signal.SIGUSR1
"""The signal at which the process writes the stack of its main thread into the report."""
_CAPACITY = 256 << 20
"""Bytes of a file at first: an image and an output. The system allocates pages that are used."""


class SharedTensors:
    """Tensors in an anonymous file that two processes map; each of them has such an object.

    Args:
        fd: The file, which grows with what is written.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.native = self._map = mmap.mmap(fd, 0)
        """The memory that native code writes, while `write` may map more of the file."""

    @classmethod
    def create(cls) -> SharedTensors:
        """Return memory in a new file."""
        fd = os.memfd_create("gpupipe images")
        os.ftruncate(fd, _CAPACITY)
        return cls(fd)

    def write(self, tensor: Tensor, begin: int = 0) -> dict[str, Any]:
        """Copy a tensor to an offset in bytes.

        Returns:
            Where it is, for `view`.
        """
        place = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "begin": begin,
            "end": begin + tensor.numel() * tensor.element_size(),
        }
        self.view(place).copy_(tensor)
        return place

    def view(self, place: dict[str, Any]) -> Tensor:
        """Return the memory of a tensor; the next `write` changes it."""
        import torch

        dtype, shape = getattr(torch, place["dtype"]), place["shape"]
        if place["end"] == place["begin"]:
            return torch.empty(shape, dtype=dtype)
        if len(self._map) < place["end"]:
            pages = -(-place["end"] // mmap.PAGESIZE) * mmap.PAGESIZE
            if os.fstat(self.fd).st_size < pages:
                os.ftruncate(self.fd, pages)
            self._map = mmap.mmap(self.fd, pages)
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        return whole[place["begin"] : place["end"]].view(dtype).view(shape)


class _Forks:
    """Notes where the code of this process forks."""

    def __init__(self) -> None:
        self.stack: traceback.StackSummary | None = None
        os.register_at_fork(before=self._note)

    def _note(self) -> None:
        self.stack = traceback.extract_stack()


def serve() -> None:
    """Call the function for each request until the other process closes the pipe.

    Arguments of the command: Python's path as JSON, and the descriptors of the pipe of requests,
    the pipe of answers, the shared memory and the report.
    """
    descriptors = [int(text) for text in sys.argv[2:6]]
    for fd in descriptors:
        os.set_inheritable(fd, False)  # the function may start programs
    requests, answers = Connection(descriptors[0]), Connection(descriptors[1])
    close_in_forks(descriptors[0])
    close_in_forks(descriptors[1])
    faulthandler.enable(descriptors[3], all_threads=False)
    faulthandler.register(STACK_SIGNAL, descriptors[3], all_threads=False)
    _end_with(descriptors[0])
    import torch

    torch.set_num_threads(1)  # the workers are as many as the user wants
    call, args, folder = pickle.loads(requests.recv_bytes())
    seed_generators(0)
    try:
        function = find_function(call, args, folder)
    except FunctionMissingError as e:
        answers.send_bytes(json.dumps({"missing": str(e)}).encode())
        return
    answers.send_bytes(b"{}")
    forks, memory, own = _Forks(), SharedTensors(descriptors[2]), os.getpid()
    while True:
        try:
            request = json.loads(requests.recv_bytes())
        except EOFError:
            return
        answer = _call(function, request, memory, forks)
        if os.getpid() != own:
            os._exit(0)
        answers.send_bytes(json.dumps(answer).encode())


def _call(
    function: UserFunction, request: dict[str, Any], memory: SharedTensors, forks: _Forks
) -> dict[str, Any]:
    """Return where the output is in the memory, or the fields of a CallFailedError."""
    place = request["image"]
    image = memory.view(place).clone()
    forks.stack = None
    seed_generators(request["seed"])
    try:
        output = function(image, request["field"], request["seed"])
        if forks.stack is None:
            begin = -(-place["end"] // mmap.PAGESIZE) * mmap.PAGESIZE  # aligned for every dtype
            return {"output": memory.write(output, begin)}
    except BaseException as e:  # SystemExit, too
        return {"failed": asdict(explain_failure(e, function.find_line))}
    line = function.find_line(forks.stack)
    failure = CallFailedError(f"forks{line}: its process must stay one; start a program instead")
    return {"failed": asdict(failure)}


def _end_with(descriptor: int) -> None:
    """End this process when the other end of a pipe is closed, whatever the function does."""

    def wait() -> None:
        hang_up = select.poll()
        hang_up.register(descriptor, 0)
        hang_up.poll()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
