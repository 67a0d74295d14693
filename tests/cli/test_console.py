"""What the commands share."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest

from gpupipe import config as configs
from gpupipe.bench.tables import new_table
from gpupipe.cli import console
from gpupipe.cli.console import Screen
from gpupipe.dataset.index import build
from helpers import forked_python
from helpers.full_product import IS_FULL


def test_cores_are_those_that_the_process_may_use() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert console.core_numbers(None) == tuple(allowed)
    assert console.core_numbers(1) == (allowed[0],)
    with pytest.raises(click.BadParameter, match=f"but this process may use {len(allowed)}"):
        console.core_numbers(len(allowed) + 1)


def test_without_a_terminal_each_new_task_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen(quiet=False) as screen:
        for done in range(3):
            screen.progress("indexing", done, 3)
        screen.progress("verifying", 1, None)
        count = screen.counter("trials")
        count("workers=2", 0, 2)
        count("", 1, 2)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["indexing", "verifying", "workers=2"]
    assert printed.out == ""


def test_a_quiet_screen_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen(quiet=True) as screen:
        screen.progress("indexing", 1, 3)
        screen.tick("1/3", 10, 100)
    assert capsys.readouterr() == ("", "")


BEFORE_TORCH = """
import os, sys

class Ends:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os._exit(3)

sys.meta_path.insert(0, Ends())
from gpupipe.cli.app import main
main()
"""


@pytest.mark.parametrize(
    "words",
    [
        *("run lfw", "inspect lfw --headers", "try lfw", "show-batch lfw"),
        *(["check lfw", "compare lfw", "parity lfw", "profile lfw", "tune lfw"] if IS_FULL else []),
    ],
)
def test_a_terminal_shows_what_is_read_before_torch_is_imported(words: str, tmp_path: Path) -> None:
    terminal, side = pty.openpty()
    command = [sys.executable, "-c", BEFORE_TORCH, *words.split()]
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=side, cwd=tmp_path, timeout=100
    )
    os.close(side)
    with open(terminal, "rb") as file:
        assert done.returncode == 3
        assert file.read1(1000).startswith(b"reading lfw\r\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("init photos", "reading photos"),
        ("serve lfw", "reading lfw"),
        ("cache status lfw", "reading lfw"),
        ("cache list", "looking for caches"),
        ("fetch no_such_dataset", "fetching no_such_dataset"),
        ("show loader", "reading the settings of loader"),
        ("show step.resize", "looking for names such as step.resize"),
        ("schema", "describing all steps and sources"),
        ("status tcp://127.0.0.1:1", "asking tcp://127.0.0.1:1"),
    ],
)
def test_a_terminal_shows_at_once_what_a_command_does(
    words: str, line: str, tmp_path: Path
) -> None:
    terminal, side = pty.openpty()
    command = [sys.executable, "-m", "gpupipe", *words.split()]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=side, cwd=tmp_path) as process:
        os.close(side)
        with open(terminal, "rb") as file:
            first = file.readline()
            process.kill()
    assert first == f"{line}\r\n".encode()


def test_colour_that_is_forced_brings_no_bars_to_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with console.Screen(quiet=False) as screen:
        screen.progress("scanning", 0, 10)
    assert capsys.readouterr().err == "scanning\n"


def test_without_a_terminal_no_line_of_a_table_is_too_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    row = ("name", "long words " * 50)
    console.console().print(new_table("", "name", "is", rows=[row]))
    assert [line.split() for line in capsys.readouterr().out.splitlines()][3] == " ".join(
        row
    ).split()


def test_a_stand_in_is_a_warning_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = build(tmp_path, ["a.png"], np.zeros(1, np.int64), ["a"])
    console.print_data_warning(index)
    assert capsys.readouterr() == ("", "")


def test_numbers_of_schedules_are_those_of_epoch_0(
    faces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        f"data: {{source: folder, root: {faces}}}\n"
        "pipeline: [decode, resize: {size: {value: 16, until: 2, then: 32}}]\n"
        "loader: {device: cpu}\n"
    )
    checked, index = console.read(str(path), ())
    assert len(index) == 60
    assert not checked.pipeline.later
    assert "the numbers of schedules are those of epoch 0" in capsys.readouterr().err


def test_the_decoded_cache_is_left_out_and_that_is_said(
    faces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"source": "folder", "root": str(faces)}
    plain = configs.read({"data": data, "pipeline": ["decode"]})
    assert console.leave_out_decoded_cache(plain) is plain
    assert capsys.readouterr().err == ""
    cached = configs.read(
        {
            "data": data | {"cache_decoded": {"where": "memory", "max_bytes": "1MB"}},
            "pipeline": ["decode"],
        }
    )
    assert console.leave_out_decoded_cache(cached).source.cache_decoded is None
    assert "every image is decoded" in capsys.readouterr().err


def test_after_ctrl_c_the_exit_code_is_that_of_shells() -> None:
    code = "from gpupipe.cli.console import leave_interrupted; print('out'); leave_interrupted()"
    done = forked_python.run(["-c", code])
    assert (done.returncode, done.stdout, done.stderr) == (130, "out\n", "interrupted\n")


INTERRUPTED = """
import importlib, os, signal, sys
from pathlib import Path
from gpupipe.cli import console

interrupt = "import os, signal; os.kill(os.getpid(), signal.SIGINT); [0 for _ in range(1000)]"
Path("interrupts.py").write_text(interrupt)
sys.path.insert(0, "")
with console.exit_if_interrupt_is_lost():
    try:
        exec(interrupt)
    except KeyboardInterrupt:
        print("raised", flush=True)
    try:  # as packages do, around the imports of what they can do without
        import interrupts
    except BaseException:
        print("lost")
"""


def test_ctrl_c_is_raised_but_in_imports_where_it_ends_the_process(tmp_path: Path) -> None:
    done = forked_python.run(["-c", INTERRUPTED], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "raised\n", "interrupted\n")


FORKING = """
import os, signal, sys, time
from gpupipe.cli import console

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    [0 for _ in range(1000)]

os.register_at_fork(**{sys.argv[1]: interrupt})
with console.exit_if_interrupt_is_lost():
    if not os.fork():
        time.sleep(600 if sys.argv[1] == "after_in_parent" else 0)
        os._exit(3)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize(
    ("function", "expected"),
    [("after_in_parent", (130, "", "interrupted\n")), ("after_in_child", (0, "3\n", ""))],
)
def test_ctrl_c_in_a_fork_ends_the_process_and_not_the_child_alone(
    function: str, expected: tuple[int, str, str]
) -> None:
    """Python ignores what is raised in functions that it calls after a fork."""
    done = forked_python.run(["-c", FORKING, function])
    assert (done.returncode, done.stdout, done.stderr) == expected


def test_other_exceptions_that_python_ignores_are_reported() -> None:
    code = """
from gpupipe.cli import console
with console.exit_if_interrupt_is_lost():
    type("Broken", (), {"__del__": lambda self: int("in __del__")})()
print("goes on")
"""
    done = forked_python.run(["-c", code])
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert "ValueError: invalid literal" in done.stderr


def test_after_the_block_ctrl_c_has_its_handler_again() -> None:
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook
    with console.exit_if_interrupt_is_lost():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == before


IMPORTING = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass
        except KeyboardInterrupt:
            pass

from gpupipe.cli.app import main

sys.meta_path.insert(0, Interrupts())
main()
"""


@pytest.mark.parametrize(
    "words",
    [
        *("run lfw", "compare", "serve lfw", "doctor", "init ."),
        *(["check lfw", "profile lfw", "tune lfw"] if IS_FULL else []),
    ],
)
def test_a_command_ends_when_it_is_interrupted_in_an_import(words: str) -> None:
    command = [sys.executable, "-c", IMPORTING, *words.split()]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


STARTING = IMPORTING.replace("from gpupipe.cli.app import main\n", "").replace(
    "main()", "import runpy; runpy.run_module('gpupipe', run_name='__main__')"
)


def test_before_the_commands_are_imported_ctrl_c_has_its_default_action() -> None:
    code = STARTING.replace("try:", "if name != 'gpupipe.cli': return\n        try:")
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_no_process_of_an_interrupted_command_is_left(faces: Path) -> None:
    script = "import os, runpy; os.setsid(); runpy.run_module('gpupipe', run_name='__main__')"
    data = f"data={{source: folder, root: {faces}}}"
    words = ["run", "lfw", data, "engine=dataloader", "workers=2", "batch_size=8"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forked_python.Process(["-c", script, *words, "--epochs", "100000"], **pipes) as process:
        try:
            assert process.stdout
            assert process.stderr
            process.stdout.readline()
            os.killpg(process.pid, signal.SIGINT)
            err = process.stderr.read()
            process.wait(60)
            left = subprocess.check_output(["ps", "-eo", "pgid,args"], text=True)
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.endswith("interrupted\n")
    assert [line for line in left.splitlines() if line.split()[0] == str(process.pid)] == []


def test_a_thread_that_ends_meanwhile_does_not_keep_the_children_from_being_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = [Path("/proc/self/task/0/children")]
    monkeypatch.setattr(Path, "glob", lambda *_: gone)
    assert console._list_children() == []


def test_no_worker_outlives_an_interrupted_command() -> None:
    code = (
        "import multiprocessing as m, time\n"
        "from gpupipe.cli.console import leave_interrupted\n"
        "p = m.get_context('fork').Process(target=time.sleep, args=(600,), daemon=True)\n"
        "p.start(); print(p.pid, flush=True); leave_interrupted()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 130
    assert not Path(f"/proc/{int(done.stdout)}").exists()
