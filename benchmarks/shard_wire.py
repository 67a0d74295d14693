"""A web server behind a wire of limited bandwidth: nginx in a network namespace, for shards.py.

The limit is tc's, on the server's end of two virtual devices, so it holds over all connections
together, and no other traffic of the machine meets it. It needs root, nginx, ip and tc.
"""

import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAMESPACE, _OURS, _THEIRS = "gpbench", "gpbench0", "gpbench1"
_ADDRESS, _SERVER = "10.99.7.1", "10.99.7.2"
URL = f"http://{_SERVER}"
_PERIOD, _MIN_DATA = 0.02, 25_000
CONFIG = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen {listen}; root {root}; autoindex on; }}
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
        config.write_text(CONFIG.format(folder=folder, root=root.resolve(), listen="80"))
        server = None
        try:
            _remove()  # those of a run that was killed
            for command in commands:
                subprocess.run(command.split(), check=True, capture_output=True)
            start = f"ip netns exec {_NAMESPACE} nginx -c {config}"
            server = subprocess.Popen(start.split())
            yield
        finally:
            if server is not None:
                server.terminate()
                server.wait()
            _remove()


def _remove() -> None:
    """Remove the devices and the namespace. The kernel removes those of a namespace later."""
    for command in (f"ip link del {_OURS}", f"ip netns del {_NAMESPACE}"):
        subprocess.run(command.split(), check=False, capture_output=True)


def count_received() -> int:
    """Return the bytes that came over the wire so far, headers of packets included."""
    return int(Path(f"/sys/class/net/{_OURS}/statistics/rx_bytes").read_text())


class Arrivals:
    """Notes when the first data and the last came over the wire, to a few hundredths of a second.

    Requests and the listing are no data: less than 100 kB. Nor is what comes at the end of
    connections.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._first = self._last = time.perf_counter()
        self._thread.start()

    def _watch(self) -> None:
        begin = before = count_received()
        while not self._stop.wait(_PERIOD):
            received, now = count_received(), time.perf_counter()
            if received - before > _MIN_DATA:
                self._last, before = now, received
            if received - begin < 4 * _MIN_DATA:
                self._first = now

    def stop(self) -> tuple[float, float]:
        """End, and return when the first and the last data came, by `time.perf_counter`."""
        self._stop.set()
        self._thread.join()
        return self._first, self._last
