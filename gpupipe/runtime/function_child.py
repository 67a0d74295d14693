"""What runs in the processes that function_process.py starts: it calls one function of the user's.

The child reads requests from one pipe and writes answers to another, both JSON. Pixels go through
memory that it shares with the process that started it. The first message is pickled: it comes from
that process, through a pipe that no other process has, and holds the function.

A function that forks is at fault: the copy would go on with the loop of its parent.
"""

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
from typing import Any

from gpupipe.runtime.function_draws import seed_generators
from gpupipe.runtime.function_failures import CallFailedError, explain_failure
from gpupipe.runtime.process import close_in_forks
from gpupipe.runtime.shared_tensors import SharedTensors
from gpupipe.runtime.user_functions import FunctionMissingError, UserFunction, find_function

STACK_SIGNAL: int = getattr(signal, "SIGUSR1", 0)
"""The signal at which the process writes the stack of its main thread into the report."""


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
