"""Programs whose imports are tested, run one after another in forks of one Python.

It has imported torch alone, and what the test names. helpers/forked_python.py also imports
torchvision, DALI and gpupipe: what an import does, or a variable that is read at an import, cannot
be tested there.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helpers import forked_python

_LAUNCHER = """
import importlib, json, os, sys, tempfile, traceback

for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
for request in json.loads(sys.argv[2]):
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    if not (pid := os.fork()):
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.environ.update(request["environment"])
        code = 0
        try:
            exec(compile(request["program"], "<string>", "exec"), {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    output = []
    for file in (out, err):
        file.seek(0)
        output.append(file.read().decode())
    print(json.dumps([code, *output]), flush=True)
"""


@dataclass(frozen=True)
class Program:
    """A program, and the environment variables that it has beside those of this process."""

    code: str
    environment: Mapping[str, str]


def run_each(
    imports: Sequence[str], programs: Sequence[Program]
) -> list[subprocess.CompletedProcess[str]]:
    """Return how each program ended in a fork of a Python with these modules imported."""
    requests = [{"program": p.code, "environment": dict(p.environment)} for p in programs]
    command = ["-c", _LAUNCHER, json.dumps(list(imports)), json.dumps(requests)]
    done = forked_python.run(command, has_torch_alone=True)
    assert done.returncode == 0, done.stderr
    return [
        subprocess.CompletedProcess(["python"], *json.loads(line))
        for line in done.stdout.splitlines()
    ]
