"""Where clients begin after a server was stopped, or crashed."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from gpupipe.server.lease_state import ServerStopped
from gpupipe.server.write_ahead_log import read_log
from helpers.forked_python import Process
from helpers.ports import free_port
from helpers.serve_commands import Commands, stop
from helpers.served import Batches, ids_of, same_batches, serving


@pytest.fixture
def commands(config: dict[str, Any], tmp_path: Path) -> Commands:
    return Commands(config, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("taken", [3, 8])
def test_a_training_that_starts_with_a_server_begins_with_the_first_epoch(
    commands: Commands, whole: list[Batches], number: int, taken: int
) -> None:
    """Whether the last server was stopped in the middle of an epoch, or after it."""
    with commands.serve() as process:
        with gpupipe.connect(commands.address, device="cpu", ids=True) as loader:
            iterator = iter(loader)
            first = [next(iterator) for _ in range(taken)]
            assert same_batches(first, whole[0][:taken])
        assert "--resume goes on there" in stop(process, number)
    with commands.serve() as process:
        with gpupipe.connect(commands.address, device="cpu", ids=True) as loader:
            assert len(loader) == 8
            assert same_batches(list(loader), whole[0])
        assert "going on" not in stop(process, number)


def test_a_server_that_is_asked_to_resume_goes_on_where_the_last_was_stopped(
    commands: Commands, whole: list[Batches]
) -> None:
    with commands.serve("--resume") as process:
        with gpupipe.connect(commands.address, device="cpu", ids=True) as loader:
            iterator = iter(loader)
            first = [next(iterator) for _ in range(3)]
        said = stop(process, signal.SIGINT)
        assert "beginning with the first epoch" in said, "there was no state"
        assert "stopped in epoch 0 of rank 0: 3 of 8 batches done" in said
    with commands.serve("--resume") as process:
        with pytest.warns(
            UserWarning,
            match="3 of the 8 batches of epoch 0 were consumed before, so this client gets 5",
        ):
            loader = gpupipe.connect(commands.address, device="cpu", ids=True)
        with loader:
            assert len(loader) == 5
            assert same_batches(first + list(loader), whole[0])
            assert same_batches(list(loader), whole[1])
        assert "going on with epoch 0 of rank 0: 3 of 8 batches done" in stop(
            process, signal.SIGINT
        )
    with (
        commands.serve("--fresh") as process,
        gpupipe.connect(commands.address, device="cpu", ids=True) as loader,
    ):
        assert same_batches(list(loader), whole[0])


def test_a_server_that_crashed_goes_on_for_its_own_client(
    commands: Commands, whole: list[Batches]
) -> None:
    with commands.serve() as process:
        loader = gpupipe.connect(commands.address, device="cpu", ids=True, hwm=1)
        iterator = iter(loader)
        found = [next(iterator) for _ in range(3)]
        stop(process, signal.SIGKILL)
    with loader, commands.serve():
        found += list(iterator)
        assert same_batches(found, whole[0])
        assert same_batches(list(loader), whole[1])


CONSUME = """
import sys, gpupipe
loader = gpupipe.connect(sys.argv[1], device="cpu", hwm=1)
for n, batch in enumerate(loader):
    if n == 2:
        print("third", flush=True)
        sys.stdin.read()
"""


@contextmanager
def _other_client(address: str) -> Iterator[Process]:
    """A client in a process of its own, which has consumed two batches and holds the third."""
    with Process(
        ["-c", CONSUME, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "third\n"
            yield process
        finally:
            process.kill()


def test_a_new_client_after_a_crash_that_its_own_did_not_outlive_begins_with_the_first_epoch(
    commands: Commands, whole: list[Batches]
) -> None:
    with commands.serve() as process, _other_client(commands.address) as other:
        stop(process, signal.SIGKILL)
        other.kill()
    with commands.serve(), gpupipe.connect(commands.address, device="cpu", ids=True) as loader:
        assert len(loader) == 8
        assert same_batches(list(loader), whole[0])


def test_a_new_client_after_a_crash_joins_those_that_outlived_it(
    commands: Commands, whole: list[Batches]
) -> None:
    with commands.serve() as process, _other_client(commands.address):
        stop(process, signal.SIGKILL)
        with (
            commands.serve(),
            pytest.warns(UserWarning, match=r"[34] of the 8 batches of epoch 0 went to others"),
        ):
            loader = gpupipe.connect(commands.address, device="cpu", ids=True)
            with loader:
                iterator = iter(loader)
                assert ids_of([next(iterator)])[0] in ids_of(whole[0])[3:]


def test_forked_workers_keep_neither_port_nor_lock_of_a_server_that_is_killed(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """Not even while they are paused, and cannot notice its end. Then they end as well."""
    config["loader"] |= {"workers": 2, "multiprocessing_context": "fork"}
    commands = Commands(config, tmp_path)
    with commands.serve() as process:
        loader = gpupipe.connect(commands.address, device="cpu", ids=True, hwm=1)
        iterator = iter(loader)
        found = [next(iterator)["id"] for _ in range(3)]
        workers = _workers(process.pid)
        for worker in workers:
            signal.pidfd_send_signal(worker, signal.SIGSTOP)
        try:
            process.kill()
            process.wait(60)
            with loader, commands.serve():
                found += [batch["id"] for batch in iterator]
        finally:
            for worker in workers:
                signal.pidfd_send_signal(worker, signal.SIGCONT)
                assert select.select([worker], [], [], 60)[0], "it outlives its server"
                os.close(worker)
    assert sorted(torch.cat(found).tolist()) == list(range(23))


def _workers(pid: int) -> list[int]:
    """Descriptors of the DataLoader workers of process `pid`."""
    workers = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            words, _, rest = file.read_text(errors="replace").rpartition(")")
            if words.endswith("(pt_data_worker") and int(rest.split()[1]) == pid:
                workers.append(os.pidfd_open(int(file.parent.name)))
    return workers


PARENT = """
import sys, json, time
from gpupipe.server.start import start_server
server = start_server(json.loads(sys.argv[1]), port=int(sys.argv[2]), state=sys.argv[3])
print(server.address, flush=True)
if sys.argv[4] == "close":
    sys.stdin.read()
    server.close()
else:
    time.sleep(600)
"""


@pytest.mark.parametrize("end", ["close", "die"])
def test_a_server_process_ends_its_run_when_it_is_closed_and_not_when_its_parent_dies(
    config: dict[str, Any], whole: list[Batches], tmp_path: Path, end: str
) -> None:
    port = free_port()
    words = [
        "-c",
        PARENT,
        json.dumps(config),
        str(port),
        str(tmp_path / "state"),
        end,
    ]
    with Process(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        address = parent.stdout.readline().strip()
        with gpupipe.connect(address, device="cpu", ids=True) as loader:
            next(iter(loader))
        if end == "die":
            parent.kill()
        parent.stdin.close()
        parent.wait(60)
    log = read_log(_when_ended(tmp_path / "state"))
    assert log is not None
    assert (log[1][-1] == ServerStopped()) == (end == "close")


def _when_ended(state: Path) -> Path:
    """The state file, when the server that keeps it has ended."""
    import fcntl

    with state.with_name(state.name + ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    return state


def test_a_state_of_something_else_that_was_stopped_is_no_obstacle(
    config: dict[str, Any], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with serving(config, state=state):
        pass
    with (
        pytest.raises(gpupipe.StateError, match="seed: 5 there, 6 here"),
        serving(config, {"seed": 6}, state=state, resume=True),
    ):
        pass
    with serving(config, {"seed": 6}, state=state):
        pass


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"resume": True, "fresh": True, "state": Path("state")}, "give one of them"),
        ({"resume": True}, "--state"),
    ],
)
def test_resume_needs_a_state_and_is_not_fresh(
    config: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(gpupipe.ServerError, match=why), serving(config, **options):
        pass
