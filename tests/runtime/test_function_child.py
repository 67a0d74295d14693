"""What the child does by itself; test_function_pool.py and test_function_process.py call it."""

import os
import subprocess
import sys

from helpers.process_ends import ends

SCRIPT = """
import os, threading, time, torch
from gpupipe.runtime.function_pool import FunctionPool
pool = FunctionPool("helpers.user_functions:hang_if_dark", {}, None, 1, 60)
pool.call(torch.full((3, 2, 2), 200), "image", 0)
print(pool._processes._processes[0].pid, flush=True)
threading.Thread(target=pool.call, args=(torch.zeros(3, 2, 2), "image", 0)).start()
time.sleep(0.5)
os.kill(os.getpid(), 9)
"""


def test_a_process_ends_with_its_parent_even_if_the_function_hangs() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, env=env
    ) as parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        parent.stdout.read()  # until both have ended, since the process has the pipe, too
    assert ends(process)
