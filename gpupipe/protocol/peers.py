"""Identifies the peers of a connection: by their keys, and by their processes.

Key files for CURVE, ZeroMQ's encryption, are in ZeroMQ's own format: NAME.key holds the public key,
NAME.key_secret both keys. Server and client on one machine look up each other's process, to detect
that it has ended.
"""

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpupipe.errors import ServerError
from gpupipe.runtime.installation import install_command
from gpupipe.runtime.systems import require_posix

PUBLIC, SECRET = ".key", ".key_secret"


def create_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a pair of key files in `folder`, and the folder if it does not exist.

    Returns:
        (path of the public key file, path of the secret key file). Only the user can read the
        secret key file.

    Raises:
        ServerError: One of the files exists already, or the files cannot be written.
    """
    import_zmq()
    from zmq import auth

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
            "another folder with --out"
        ) from e
    return public, secret


def load_keys(path: Path, secret: bool) -> tuple[bytes, bytes | None]:
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
    import_zmq()
    from zmq import auth

    if not path.is_file():
        raise ServerError(f"{path}: no such key file; 'gpupipe keys new NAME' makes a pair")
    try:
        key_pair = auth.load_certificate(path)
    except (OSError, ValueError) as e:
        raise ServerError(f"{path} is no key: {e}; 'gpupipe keys new NAME' makes a pair") from None
    if secret and key_pair[1] is None:
        raise ServerError(f"{path} holds no secret key: name the file that ends in {SECRET}")
    if secret and path.stat().st_mode & 0o077:
        raise ServerError(f"{path} can be read by other users: chmod 600 {path}")
    return key_pair


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
    socket.curve_publickey, socket.curve_secretkey = load_keys(secret, True)
    socket.curve_server = True
    socket.zap_domain = b"gpupipe"


def secure_client(socket: Any, secret: Path, server: Path) -> None:
    """Encrypt a client's socket: it accepts only the server whose public key is in `server`.

    Raises ServerError if the file `secret` holds no secret key or other users can read it, or if
    the file `server` holds no key.
    """
    socket.curve_publickey, socket.curve_secretkey = load_keys(secret, True)
    socket.curve_serverkey = load_keys(server, False)[0]


def import_zmq() -> Any:
    """Import and return pyzmq. Raises ServerError, with the pip command, if it is not installed.

    Raises DeviceError on Windows.
    """
    require_posix("the data processing server")
    try:
        import msgspec  # noqa: F401  # messages.py needs it
        import zmq
    except ModuleNotFoundError as e:
        raise ServerError(
            f"the data processing server needs {e.name}: {install_command('server')}"
        ) from None
    return zmq


# --- processes


def host_id() -> str:
    """Return a text that identifies the running kernel, process namespace and user of this process.

    Two processes with the same text can share memory, and each can detect that the other has ended.
    Returns "" if the system does not have the files in /proc that this needs.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {os.geteuid()}"
    except OSError:
        return ""


def start_time(pid: int) -> str:
    """Return the start time of a process on this machine, in clock ticks since boot, as text.

    The process id and the start time together identify a process. Returns "" if the process has
    ended.
    """
    fields = read_stat(pid)
    return "" if not fields or fields[0] in "ZX" else fields[19]


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the process name, or [] if the process has ended.

    Index 0 is the process state, which is field 3 in the man page proc_pid_stat(5).
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
