"""Key files for CURVE, ZeroMQ's encryption.

They are in ZeroMQ's own format: NAME.key holds the public key, NAME.key_secret both keys.
"""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpupipe.errors import ServerError
from gpupipe.runtime.installation import install_command

PUBLIC, SECRET = ".key", ".key_secret"


def new(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a pair of key files in `folder`, and the folder if it does not exist.

    Returns:
        (path of the public key file, path of the secret key file). Only the user can read the
        secret key file.

    Raises:
        ServerError: One of the files exists already, or the files cannot be written.
    """
    auth = import_auth()
    public, secret = folder / (name + PUBLIC), folder / (name + SECRET)
    try:
        if public.exists() or secret.exists():
            raise ServerError(
                f"{secret} is there already: choose another name, or remove both files"
            )
        folder.mkdir(parents=True, exist_ok=True)
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
    except OSError as e:
        raise ServerError(
            f"no keys can be written to {folder} ({e.strerror}): make room there, or name "
            "another folder with --folder"
        ) from e
    return public, secret


def load(path: Path, secret: bool) -> tuple[bytes, bytes | None]:
    """Read a key file.

    Args:
        path: The key file.
        secret: Require that the file holds a secret key and that other users cannot read it.

    Returns:
        (public key, secret key or None), Z85-encoded.

    Raises:
        ServerError: The file holds no key. With `secret`, also if it holds no secret key or other
            users can read it.
    """
    auth = import_auth()
    try:
        key_pair = auth.load_certificate(path)
    except (OSError, ValueError) as e:
        raise ServerError(f"{path} is no key: {e}; 'gpupipe keys new NAME' makes a pair") from None
    if secret and key_pair[1] is None:
        raise ServerError(f"{path} holds no secret key: name the file that ends in {SECRET}")
    if secret and path.stat().st_mode & 0o077:
        raise ServerError(f"{path} can be read by other users: chmod 600 {path}")
    return key_pair  # type: ignore[no-any-return]  # pyzmq's


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address (ipc://, or a loopback host)."""
    if address.startswith("ipc://"):
        return True
    host = urlsplit(address).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def secure_server(socket: Any, secret: Path) -> None:
    """Encrypt a server's socket: it accepts only clients that know the server's public key.

    The authenticator of ZeroMQ's context decides which clients' keys are allowed. Raises
    ServerError if the file `secret` holds no secret key or other users can read it.
    """
    socket.curve_publickey, socket.curve_secretkey = load(secret, True)
    socket.curve_server = True
    socket.zap_domain = b"gpupipe"


def secure_client(socket: Any, secret: Path, server: Path) -> None:
    """Encrypt a client's socket: it accepts only the server whose public key is in `server`.

    Raises ServerError if the file `secret` holds no secret key or other users can read it, or if
    the file `server` holds no key.
    """
    socket.curve_publickey, socket.curve_secretkey = load(secret, True)
    socket.curve_serverkey = load(server, False)[0]


def import_zmq() -> Any:
    """Import and return pyzmq. Raises ServerError, with the pip command, if it is not installed."""
    try:
        import msgspec  # noqa: F401  # messages.py needs it
        import zmq
    except ModuleNotFoundError as e:
        raise ServerError(
            f"the data processing server needs {e.name}: {install_command('server')}"
        ) from None
    return zmq


def import_auth() -> Any:
    """Import and return zmq.auth. Raises ServerError if pyzmq is not installed."""
    import_zmq()
    import zmq.auth

    return zmq.auth
