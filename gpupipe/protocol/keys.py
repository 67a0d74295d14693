"""Keys of CURVE, ZeroMQ's encryption: files in ZeroMQ's own format, NAME.key (public) and
NAME.key_secret.
"""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpupipe.errors import ServerError

PUBLIC, SECRET = ".key", ".key_secret"


def new(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a pair of keys. Returns (public file, secret file).

    Raises ServerError if there is one of that name, or if the files cannot be written.
    """
    auth = import_auth()
    public, secret = folder / (name + PUBLIC), folder / (name + SECRET)
    try:
        if public.exists() or secret.exists():
            raise ServerError(
                f"{secret} is there already: choose another name, or remove both files"
            )
        folder.mkdir(parents=True, exist_ok=True)
        _write(auth, folder, name, public, secret)
    except OSError as e:
        raise ServerError(
            f"no keys can be written to {folder} ({e.strerror}): make room there, or name "
            "another folder with --folder"
        ) from e
    return public, secret


def _write(auth: Any, folder: Path, name: str, public: Path, secret: Path) -> None:
    """Both files or none. Raises OSError."""
    before = os.umask(0o077)
    try:
        auth.create_certificates(folder, name)
    except OSError:
        for file in (public, secret):
            file.unlink(missing_ok=True)
        raise
    finally:
        os.umask(before)
    public.chmod(0o644)


def load(path: Path, secret: bool) -> tuple[bytes, bytes | None]:
    """(public, secret) key in a file.

    Raises ServerError where there is none, and where others may read a secret one.
    """
    auth = import_auth()
    try:
        found = auth.load_certificate(path)
    except (OSError, ValueError) as e:
        raise ServerError(f"{path} is no key: {e}; 'gpupipe keys new NAME' makes a pair") from None
    if secret and found[1] is None:
        raise ServerError(f"{path} holds no secret key: name the file that ends in {SECRET}")
    if secret and path.stat().st_mode & 0o077:
        raise ServerError(f"{path} can be read by other users: chmod 600 {path}")
    return found  # type: ignore[no-any-return]  # pyzmq's word


def is_loopback(address: str) -> bool:
    """Whether an address reaches this machine alone."""
    if address.startswith("ipc://"):
        return True
    host = urlsplit(address).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def secure_server(socket: Any, secret: Path) -> None:
    """Make a socket accept only who knows the server's public key; who is allowed is the
    authenticator's to say.
    """
    socket.curve_publickey, socket.curve_secretkey = load(secret, True)
    socket.curve_server = True
    socket.zap_domain = b"gpupipe"


def secure_client(socket: Any, secret: Path, server: Path) -> None:
    """Make a socket speak to one server only, as the holder of a key."""
    socket.curve_publickey, socket.curve_secretkey = load(secret, True)
    socket.curve_serverkey = load(server, False)[0]


def import_zmq() -> Any:
    """pyzmq. Raises ServerError, saying what to install, where it is absent."""
    try:
        import msgspec  # noqa: F401  # what the messages need beside it
        import zmq
    except ModuleNotFoundError as e:
        raise ServerError(
            f"the data processing server needs {e.name}: pip install 'gpupipe[server]'"
        ) from None
    return zmq


def import_auth() -> Any:
    """What makes and reads files of keys. Raises ServerError as import_zmq does."""
    import_zmq()
    import zmq.auth

    return zmq.auth
