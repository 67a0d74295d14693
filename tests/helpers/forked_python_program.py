"""The program that forked_python.executable() names: it has a Python forked, and ends as that does.

    python -I -S forked_python_program.py ITS_PATH SOCKET ARGUMENTS

It imports little, and nothing of this folder: it is started hundreds of times in a run of the
tests, and json, subprocess and pathlib would take three times as long as all else.
"""

import marshal
import os
import signal
import socket
import sys
from contextlib import suppress

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def send_request(server: str, request: dict[str, object], streams: list[int]) -> socket.socket:
    """Ask a server for a fork with these open files.

    Args:
        server: The address of its socket.
        request: What forked_python_server.py takes: arguments, cwd, environment, executable, and
            `descriptors`, the numbers of the files after the first three.
        streams: Descriptors of the files 0 to 2, and of the others. They stay open here.

    Returns:
        The connection, on which the server answers in lines: the process id, then the exit code.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(server)
    content = marshal.dumps(request)
    # The kernel takes no more than its buffer in one message: the files go with the length.
    socket.send_fds(connection, [len(content).to_bytes(8, "little")], streams)
    connection.sendall(content)
    return connection


def _is_inherited(fd: int) -> bool:
    """Whether a descriptor was passed on to this program."""
    with suppress(OSError):
        return os.get_inheritable(fd)
    return False


def _main(path: str, server: str, arguments: list[str]) -> None:
    """Have `server` fork for these arguments, pass signals on, and end as the fork ends."""
    if not arguments or (
        arguments[0].startswith("-") and arguments[0] not in ("-c", "-m", "-u", "-W")
    ):
        os.execv(sys.executable, [sys.executable, *arguments])
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # until the fork is there to get them
    passed = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _is_inherited(fd)]
    request: dict[str, object] = {
        "arguments": arguments,
        "descriptors": passed,
        "cwd": os.getcwd(),  # noqa: PTH109  # see above
        "environment": dict(os.environ),
        "executable": path,
    }
    answers = send_request(server, request, [0, 1, 2, *passed]).makefile()
    pid = int(answers.readline())

    def forward(number: int, frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    code = int(answers.readline())
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], sys.argv[3:])
