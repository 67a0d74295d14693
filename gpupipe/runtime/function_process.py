"""One process that calls a function of the user's, seen from the process that started it.

It is a new interpreter and no fork, so it has no threads, locks or CUDA contexts of this one. It
ends when this process ends or closes its pipe.
"""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.runtime.function_child import STACK_SIGNAL
from gpupipe.runtime.function_failures import CallFailedError
from gpupipe.runtime.process import kill_session, name_signal
from gpupipe.runtime.shared_tensors import SharedTensors
from gpupipe.runtime.user_functions import FunctionMissingError, find_source_file, import_object

if TYPE_CHECKING:
    from torch import Tensor

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from gpupipe.runtime.function_child import serve; serve()"
)
_SECONDS_TO_START = 600
"""The import of the module, and the construction of a class, which may load a model."""
_SECONDS_TO_DIE = 5
_SECONDS_TO_REPORT = 2
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in', re.MULTILINE)
"""A line of faulthandler's report; the innermost frame is the first."""


class FunctionProcess:
    """A process that calls one function. Its methods raise errors after which it must be ended.

    Args:
        call: "module:name", or the function, class or object itself.
        args: Keyword arguments of the class, or of each call of a function.
        folder: The folder in which the module may lie; None: Python's path alone.
        memory: The memory for images, which outlives the process.
    """

    def __init__(
        self, call: Any, args: Mapping[str, Any], folder: Path | None, memory: SharedTensors
    ) -> None:
        hello = _pickle(call, args, folder)
        self._call, self._folder = call, folder
        self._memory = memory
        requests, self._requests = Pipe(duplex=False)
        self._answers, answers = Pipe(duplex=False)
        self._report_fd = os.memfd_create("gpupipe report")
        descriptors = [requests.fileno(), answers.fileno(), memory.fd, self._report_fd]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )
        finally:
            requests.close()
            answers.close()
        try:
            self._start(hello)
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def pipes(self) -> tuple[int, int]:
        """The descriptors of the pipes of requests and of answers."""
        return self._requests.fileno(), self._answers.fileno()

    def _start(self, hello: bytes) -> None:
        with suppress(BrokenPipeError):
            self._requests.send_bytes(hello)
        answer = self._read(_SECONDS_TO_START, "while its process was started")
        if "missing" in answer:
            raise FunctionMissingError(answer["missing"])

    def call(
        self, image: "Tensor", field: str, seed: int, timeout: float
    ) -> "Tensor | CallFailedError":
        """Return what the function returns, or why it raised."""
        place = self._memory.write(image)
        request = {"image": place, "field": field, "seed": seed}
        with suppress(BrokenPipeError):
            self._requests.send_bytes(json.dumps(request).encode())
        answer = self._read(timeout, "")
        if "failed" in answer:
            return CallFailedError(**answer["failed"])
        return self._memory.view(answer["output"]).clone()

    def _read(self, timeout: float, when: str) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            CallFailedError: The process ended, or has not answered in time.
        """
        at = f" {when}" if when else ""
        if not self._answers.poll(timeout):
            self._process.send_signal(STACK_SIGNAL)
            stack = self._read_report(_SECONDS_TO_REPORT)
            advice = "its process was ended; `timeout` sets the seconds that a call may take"
            reason = f"has not returned after {timeout:g} s{at}{self._find_line(stack)}: {advice}"
            raise CallFailedError(reason, stack, is_timeout=True)
        try:
            answer: dict[str, Any] = json.loads(self._answers.recv_bytes())
        except (EOFError, OSError):  # OSError: in the middle of an answer
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_DIE)
            self._process.kill()  # if the function closed the pipe
            status = self._process.wait()
            stack = self._read_report(0)
            how = f"status {status}" if status >= 0 else name_signal(-status)
            memory = ": out of memory, perhaps" if status == -signal.SIGKILL else ""
            raise CallFailedError(
                f"ended its process ({how}){at}{self._find_line(stack)}{memory}", stack
            ) from None
        return answer

    def _read_report(self, seconds: float) -> str:
        """Return what faulthandler wrote, after a wait for it."""
        end = time.monotonic() + seconds
        while os.fstat(self._report_fd).st_size == 0 and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(min(seconds, 0.1))  # for the rest of the stack
        return os.pread(self._report_fd, 1 << 16, 0).decode(errors="replace")

    def _find_line(self, stack: str) -> str:
        """Return " at FILE:LINE" of the innermost line of the function's file; "" if unknown.

        If the function is one of gpupipe, that calls the user's, of a file outside of gpupipe.
        """
        try:
            is_name = isinstance(self._call, str)
            call = import_object(self._call, self._folder) if is_name else self._call
        except FunctionMissingError:
            return ""
        file = find_source_file(call)
        is_ours = file.startswith(_PACKAGE)
        for name, number in _FRAME.findall(stack):
            if not name.startswith(_PACKAGE) if is_ours else name == file:
                return f" at {name}:{number}"
        return ""

    def end(self) -> None:
        """End the process, and those that it started."""
        self._requests.close()
        self._answers.close()
        kill_session(self._process)
        self._process.wait()
        os.close(self._report_fd)


def _pickle(call: Any, args: Mapping[str, Any], folder: Path | None) -> bytes:
    """Return the first message to a process.

    Raises:
        FunctionMissingError: The process could not import the function.
    """
    reason = ""
    if getattr(call if hasattr(call, "__module__") else type(call), "__module__", "") == "__main__":
        reason = "it is defined in the script that was started"
    try:
        message = pickle.dumps((call, dict(args), folder))
    except Exception as e:  # __reduce__ of an object can raise anything
        message, reason = b"", reason or f"{type(e).__name__}: {e}"
    if reason:
        raise FunctionMissingError(
            f"it cannot be sent to a process ({reason}): define it in a module, and name it as "
            "'module:function', or set workers: 0"
        )
    return message
