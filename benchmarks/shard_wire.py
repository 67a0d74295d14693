"""A web server behind a wire of limited bandwidth: nginx in a network namespace, for shards.py.

The limit is tc's, on the server's end of two virtual devices, so it holds over all connections
together, and no other traffic of the machine meets it. It needs root, nginx, ip and tc.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAMESPACE, _OURS, _THEIRS = "gpbench", "gpbench0", "gpbench1"
_ADDRESS, _SERVER = "10.99.7.1", "10.99.7.2"
URL = f"http://{_SERVER}"
_CONFIG = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 80; root {root}; autoindex on; }}
}}
"""


@contextmanager
def wire(root: Path, megabytes: float) -> Iterator[None]:
    """Serve a folder at URL, at so many million bytes a second over all connections."""
    rate = f"{round(megabytes * 8e6)}bit"
    commands = [
        f"ip netns add {_NAMESPACE}",
        f"ip link add {_OURS} type veth peer name {_THEIRS}",
        f"ip link set {_THEIRS} netns {_NAMESPACE}",
        f"ip addr add {_ADDRESS}/24 dev {_OURS}",
        f"ip link set {_OURS} up",
        f"ip netns exec {_NAMESPACE} ip addr add {_SERVER}/24 dev {_THEIRS}",
        f"ip netns exec {_NAMESPACE} ip link set {_THEIRS} up",
        f"ip netns exec {_NAMESPACE} tc qdisc add dev {_THEIRS} root tbf rate {rate} "
        "burst 512kb latency 400ms",
    ]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        config = Path(folder) / "nginx.conf"
        config.write_text(_CONFIG.format(folder=folder, root=root.resolve()))
        server = None
        try:
            for command in commands:
                subprocess.run(command.split(), check=True, capture_output=True)
            start = f"ip netns exec {_NAMESPACE} nginx -c {config}"
            server = subprocess.Popen(start.split())
            yield
        finally:
            if server is not None:
                server.terminate()
                server.wait()
            with suppress(subprocess.CalledProcessError):
                command = f"ip netns del {_NAMESPACE}"
                subprocess.run(command.split(), check=True, capture_output=True)


def count_received() -> int:
    """Return the bytes that came over the wire so far, headers of packets included."""
    return int(Path(f"/sys/class/net/{_OURS}/statistics/rx_bytes").read_text())
