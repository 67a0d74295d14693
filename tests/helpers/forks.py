"""What happens in forked processes."""

import multiprocessing
from typing import Any

import gpupipe


def said_by(act: Any) -> str:
    """The error that `act` raises, or "nothing"."""
    try:
        act()
    except gpupipe.GpupipeError as e:
        return str(e)
    return "nothing"


def in_fork(act: Any) -> str:
    """What `act` returns in a forked process; fails where that hangs."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def run() -> None:
        theirs.send(act())

    process = context.Process(target=run)
    process.start()
    theirs.close()
    try:
        assert ours.poll(60), "the forked process hangs"
        return str(ours.recv())
    finally:
        process.join(20)
        process.kill()
        ours.close()
