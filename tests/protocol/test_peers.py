"""Files of keys, and addresses that need none."""

from pathlib import Path

import pytest

from gpupipe.errors import ServerError
from gpupipe.protocol import peers


def test_a_new_pair_is_read_again_and_its_secret_is_the_users_alone(tmp_path: Path) -> None:
    public, secret = peers.create_keys(tmp_path / "folder", "mine")
    assert (public.name, secret.name) == ("mine.key", "mine.key_secret")
    assert (public.stat().st_mode & 0o777, secret.stat().st_mode & 0o777) == (0o644, 0o600)
    public_key, secret_key = peers.load_keys(secret, True)
    assert secret_key is not None
    assert peers.load_keys(public, False) == (public_key, None)


def test_keys_that_are_there_are_never_written_over(tmp_path: Path) -> None:
    _, secret = peers.create_keys(tmp_path, "mine")
    before = secret.read_bytes()
    with pytest.raises(ServerError, match="is there already"):
        peers.create_keys(tmp_path, "mine")
    assert secret.read_bytes() == before


def test_files_that_are_no_usable_secret_key_are_refused(tmp_path: Path) -> None:
    public, secret = peers.create_keys(tmp_path, "mine")
    (tmp_path / "text").write_text("no key")
    secret.chmod(0o640)
    for file, why in [
        (public, "holds no secret key"),
        (secret, "can be read by other users: chmod 600"),
        (tmp_path / "text", "is no key"),
        (tmp_path / "nowhere", "nowhere: no such key file"),
    ]:
        with pytest.raises(ServerError, match=why):
            peers.load_keys(file, True)


@pytest.mark.parametrize(
    ("address", "is_loopback"),
    [
        ("ipc:///tmp/socket", True),
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.8.9.10:1", True),
        ("tcp://[::1]:1", True),
        ("tcp://localhost:1", True),
        ("tcp://localhost.example.org:1", False),
        ("tcp://0.0.0.0:1", False),
        ("tcp://*:1", False),
        ("tcp://10.0.0.1:1", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(address: str, is_loopback: bool) -> None:
    assert peers.is_loopback(address) == is_loopback
