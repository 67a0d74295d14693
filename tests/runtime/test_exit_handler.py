"""Methods that are called at exit."""

from __future__ import annotations

from helpers import forked_python

PROGRAM = """
import os, sys
from gpupipe.runtime.exit_handler import ExitHandler

class Connection:
    def __init__(self, name):
        self.name = name
        self.at_exit = ExitHandler(self.close)
    def close(self):
        print("close", self.name, flush=True)
    def __del__(self):
        print("free", self.name, flush=True)

"""


def output_of(program: str) -> list[str]:
    done = forked_python.run(["-c", PROGRAM + program], check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_the_newest_is_called_first() -> None:
    assert output_of("a, b = Connection('a'), Connection('b')")[:2] == ["close b", "close a"]


def test_an_object_is_freed_as_early_as_without_its_handler() -> None:
    assert output_of("a = Connection('a'); del a; print('deleted')") == ["free a", "deleted"]


def test_a_cancelled_handler_is_not_called() -> None:
    assert "close a" not in output_of("a = Connection('a'); a.at_exit.cancel(); a.at_exit.cancel()")


def test_a_forked_child_calls_no_handler_of_its_parent() -> None:
    program = """
a = Connection('a')
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
print('forked', flush=True)
"""
    lines = output_of(program)
    assert lines.count("close a") == 1
    assert lines.index("forked") < lines.index("close a")
