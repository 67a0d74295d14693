"""A forked Python does what a new one does."""

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from helpers.forked_python import Process, executable, run
from helpers.forks import in_fork


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('no')", 1),
        ("raise ValueError('no')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
    ],
)
def test_exit_codes(code: str, ended: int) -> None:
    done = run(["-c", code])
    assert done.returncode == ended
    assert ("no" in done.stderr) == ("no" in code)


def test_a_child_of_the_test_process_leaves_the_server_alone() -> None:
    assert run(["-c", "pass"]).returncode == 0
    assert in_fork(lambda: "done") == "done"  # Python 3.13 clears the child's atexit
    assert run(["-c", "pass"]).returncode == 0


def test_folder_environment_arguments_and_modules(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("import os, sys\nprint(os.environ['A'], sys.argv[1:])\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "there.py").write_text("import here\n")
    env = {"A": "1", "PYTHONPATH": str(tmp_path / "site")}
    for command in (["-m", "there"], ["-c", "import there"], [str(tmp_path / "here.py")]):
        assert run([*command, "x", 2], cwd=tmp_path, env=env).stdout == "1 ['x', '2']\n"


def test_warnings_of_the_command_line() -> None:
    code = "import warnings; warnings.warn('odd')"
    assert "odd" in run(["-c", code]).stderr
    assert run(["-W", "ignore", "-c", code]).stderr == ""


def test_pipes_and_signals() -> None:
    code = "import sys, time; print(sys.stdin.readline(), flush=True); time.sleep(600)"
    with Process(["-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print("word", file=process.stdin, flush=True)
        assert process.stdout.readline() == "word\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_a_process_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run(["-c", "import time; time.sleep(600)"], timeout=0.5)


def test_exit_handlers_run_and_output_is_whole() -> None:
    code = "import atexit, sys; atexit.register(print, 'end'); sys.stdout.write('x' * 100_000)"
    assert run(["-c", code]).stdout == "x" * 100_000 + "end\n"


def test_the_executable_does_what_a_new_python_does(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1:], sys.stdin.read(), sys.executable, end=''); sys.exit(3)"
    done = subprocess.run(
        [executable(), "-c", code, "a b"],
        input="words",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, f"['a b'] words {executable()}")
    done = subprocess.run([executable(), "-c", "import os; os.abort()"], check=False)
    assert done.returncode == -signal.SIGABRT
    done = subprocess.run([executable(), "-I", "-V"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Python 3")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_ends_with_the_executable(number: int) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    command = [executable(), "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        program = os.pidfd_open(pid)
        process.send_signal(number)
        assert process.wait(60) == -number
        assert select.select([program], [], [], 60)[0]
        os.close(program)
