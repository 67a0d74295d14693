"""gpupipe serve, status and keys, as one types them; metrics as Prometheus reads them."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from click.testing import CliRunner

import gpupipe
from gpupipe.cli.app import main
from gpupipe.runtime.installation import install_command
from helpers import disks, forked_python
from helpers.forked_python import executable
from helpers.ports import free_port


@pytest.fixture
def file(config: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "little.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def served(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server as one starts it, and its address."""
    with subprocess.Popen(
        [executable(), "-m", "gpupipe", "serve", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_serve_status_and_metrics(file: Path, tmp_path: Path) -> None:
    port, metrics = free_port(), free_port()
    with served(str(file), "--port", str(port), "--metrics", str(metrics), "--hwm", "3") as (
        process,
        address,
    ):
        assert address == f"tcp://127.0.0.1:{port}"
        with gpupipe.connect(address, device="cpu", ids=True) as loader:
            first = [next(iter(loader))["id"].tolist()]
            first = [b["id"].tolist() for b in loader]
            assert len(first) == len(loader)
            said = CliRunner().invoke(main, ["status", address])
            assert said.exit_code == 0, said.output
            assert "little, share, up" in said.output
            line = r"epoch [12]: .*, 1 client \(\S+:\d+ holds \d\)"
            assert re.search(line, said.output), said.output
            stats = json.loads(CliRunner().invoke(main, ["status", address, "--json", "-"]).stdout)
            assert stats["clients"][0]["consumed"] >= len(loader)
            with urlopen(f"http://127.0.0.1:{metrics}/metrics") as answer:
                text = answer.read().decode()
            assert "gpupipe_server_batches_total" in text
            assert "gpupipe_server_clients 1.0" in text
            assert (
                f'gpupipe_server_client_hwm{{client="{stats["clients"][0]["name"]}"}}' not in text
            )
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    with served(str(file), "--port", str(port), "--resume") as (process, address):
        assert process.stderr is not None
        assert any("going on with epoch" in line for line in process.stderr), (
            "behind what is said of the data"
        )
    missing = CliRunner().invoke(main, ["status", address, "--patience", "0.2"])
    assert missing.exit_code == 1
    assert "no server answers" in missing.output


def test_what_measures_does_so_over_a_server(file: Path, tmp_path: Path) -> None:
    with served(str(file), "--port", "0") as (_, address):
        over = [str(file), "engine=remote", f"server={address}"]
        done = CliRunner().invoke(main, ["run", *over, "--batches", "8", "--repeats", "1"])
        assert done.exit_code == 0, done.output
        assert "remote on cpu, 1 server" in done.output
        assert "input" not in done.output, "of the server's files nothing is known"
        done = CliRunner().invoke(
            main,
            [
                "profile",
                *over,
                "--repeats",
                "1",
                "--repeat-seconds",
                "0.1",
                "--json",
                str(tmp_path / "profile.json"),
            ],
        )
        assert done.exit_code == 0, done.output
        assert "The server limits, or the way to it" in done.output
        found = json.loads((tmp_path / "profile.json").read_text())
        assert [s["name"] for s in found["stages"]] == ["receive"]
        assert found["limit"] == "server"
        done = CliRunner().invoke(
            main, ["profile", *over, "--repeats", "1", "--repeat-seconds", "0.1", "--step-ms", "2"]
        )
        assert "Waiting for data:" in done.output
        done = CliRunner().invoke(main, ["tune", *over])
        assert done.exit_code == 1
        assert "what there is to tune is the server's" in done.output


@pytest.mark.usefixtures("forked_executable")
def test_compare_over_a_server(file: Path, tmp_path: Path) -> None:
    """The server beside what this machine makes of the same config by itself."""
    with served(str(file), "--port", "0") as (_, address):
        words = [
            str(file),
            "engine=remote",
            f"server={address}",
            "--repeats",
            "1",
            "--batches",
            "3",
            "--cpu-workers",
            "0",
            "--json",
            str(tmp_path / "found.json"),
        ]
        done = CliRunner().invoke(main, ["compare", *words])
        assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(s["name"], s["rounds"][0]["engine"]) for s in found["sides"]] == [
        ("server", "remote"),
        ("CPU engine", "cpu"),
        ("DALI on CPU", "dali"),
        ("DataLoader, 0 workers", "dataloader"),
    ]
    assert any("has cores of its own" in note for note in found["notes"])


def test_check_and_compare_know_a_server(file: Path) -> None:
    from gpupipe import config as configs
    from gpupipe.bench.compare import list_contestants

    said = CliRunner().invoke(
        main, ["check", str(file), "engine=remote", "server=tcp://127.0.0.1:9"]
    )
    assert "made by the server at tcp://127.0.0.1:9" in said.output
    served = configs.read(file, engine="remote", server="tcp://127.0.0.1:9")
    found, _ = list_contestants(served, [0], 0, ["remote", "dataloader"])
    assert [(s.name, s.changes["engine"]) for s in found] == [
        ("server", "remote"),
        ("DataLoader, 0 workers", "dataloader"),
    ]


def test_a_server_that_would_be_open_does_not_start(file: Path) -> None:
    done = CliRunner().invoke(main, ["serve", str(file), "--host", "0.0.0.0"])
    assert done.exit_code == 1
    assert "give it keys" in done.output
    assert "Traceback" not in done.output


def test_a_dtype_that_fuels_wire_cannot_carry_does_not_start(file: Path) -> None:
    done = CliRunner().invoke(
        main,
        [
            "serve",
            str(file),
            "--wire",
            "fuel",
            "--port",
            "0",
            "dtype=bfloat16",
            "pipeline=[decode, {to_dtype: {dtype: float32}}]",
        ],
    )
    assert done.exit_code == 1, done.output
    assert "is bfloat16, a dtype that NumPy does not have" in done.output
    assert "tcp://" not in done.output, "it did not listen"


def test_keys_new(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["keys", "new", "alice", "--out", str(tmp_path / "keys")])
    assert done.exit_code == 0
    assert done.output.split() == [
        str(tmp_path / "keys" / "alice.key"),
        str(tmp_path / "keys" / "alice.key_secret"),
    ]
    assert (tmp_path / "keys" / "alice.key_secret").stat().st_mode & 0o077 == 0


@pytest.fixture(params=["a file for a folder", "read-only", "full"])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Folders that nothing can be written to, not even by root."""
    if request.param == "a file for a folder":
        (tmp_path / "file").touch()
        yield tmp_path / "file"
        return
    with disks.mounted(tmp_path / "disk", "16k", read_only=request.param == "read-only") as disk:
        if request.param == "full":
            disks.fill(disk)
        yield disk


@pytest.mark.parametrize("below", ["", "new"])
def test_keys_in_a_folder_that_cannot_be_written_are_one_line(unwritable: Path, below: str) -> None:
    done = CliRunner().invoke(main, ["keys", "new", "alice", "--out", str(unwritable / below)])
    assert done.exit_code in (1, 2), done.output  # 2: click itself sees that it is no folder
    assert str(unwritable / below) in done.output.splitlines()[-1]
    assert not unwritable.is_dir() or not list(unwritable.rglob("alice*")), "half a key is none"


def test_a_state_that_cannot_be_kept_is_one_line(file: Path, unwritable: Path) -> None:
    command = [
        executable(),
        "-m",
        "gpupipe",
        "serve",
        str(file),
        "--quiet",
        "--state",
        str(unwritable / "server.state"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert (
        f"error: {unwritable / 'server.state'}: the state of the server cannot be kept ("
        in done.stderr.splitlines()[-1]
    )


def test_a_server_whose_disk_fills_up_ends_with_one_line(file: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(disks.mounted(tmp_path / "disk", "64k"))
        words = [str(file), "--port", str(free_port()), "--state", str(disk / "server.state")]
        process, address = stack.enter_context(served(*words))
        with gpupipe.connect(address, device="cpu", patience=5.0) as loader:
            next(iter(loader))
            disks.fill(disk)
            with pytest.raises(gpupipe.ServerError):
                while True:  # the journal's last page has room for a few more lines
                    list(loader)
        assert process.wait(60) == 1
        assert process.stderr is not None
        said = process.stderr.read()
    assert (
        "server.state: the state of the server cannot be kept (No space left on device)"
        in said.splitlines()[-1]
    )
    assert "Traceback" not in said


WITHOUT = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("zmq", "msgspec"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from click.testing import CliRunner
import gpupipe
from gpupipe.cli.app import main
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(main, words)
    print(json.dumps([type(done.exception).__name__, done.exit_code, done.output]))
gpupipe.start_server({})
"""


def test_without_zeromq_the_message_says_what_to_install(file: Path) -> None:
    """In a Python with torch alone: one that has imported zmq would not miss it."""
    address = "tcp://127.0.0.1:9"
    remote = ["engine=remote", f"server={address}"]
    commands = [["serve", str(file)], ["run", str(file), *remote], ["status", address]]
    done = forked_python.run(["-c", WITHOUT, json.dumps(commands)], has_torch_alone=True)
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ended) == len(commands), done.stderr
    for exception, code, said in ended:
        assert (exception, code) == ("SystemExit", 1), said
        assert install_command("server") in said
    assert done.stderr.strip().endswith(
        "gpupipe.errors.ServerError: the data processing server needs msgspec: "
        f"{install_command('server')}"
    )
