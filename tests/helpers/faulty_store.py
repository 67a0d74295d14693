"""A store on loopback that misbehaves on demand, in a thread or in a process that can be killed."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_FILES = (".jpg", ".tar", ".parquet")


@dataclass
class Faults:
    """What an HTTP server does wrong, by the path's end: how often it answers 500, cuts a body off,
    stalls, tells another ETag, sends other content, answers 500 to HEAD and the GET after it, or
    403 or 404, or sends a range of wrong bytes.
    `headers` are sent with every image, in place of its own; "" for none. `is_allowed` says of a
    path with its query, and of headers, whether the answer is no 403. `asked` has the path of
    each GET, and `sent` the path, begin and end of each range that was sent.
    """

    errors: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    stalls: dict[str, int] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    garbled: dict[str, int] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    forbidden: dict[str, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    has_ranges: bool = True
    is_allowed: Callable[[str, Mapping[str, str]], bool] = lambda path, headers: True
    asked: list[str] = field(default_factory=list)
    sent: list[tuple[str, int, int]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def due(self, faults: dict[str, int], path: str) -> bool:
        for end, left in faults.items():
            if path.endswith(end) and left:
                faults[end] = left - 1
                return True
        return False


def _create_handler(root: Path, faults: Faults) -> type[SimpleHTTPRequestHandler]:
    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(root))

        def log_message(self, *args: Any) -> None:
            pass

        def copyfile(self, source: Any, outputfile: Any) -> None:
            with suppress(BrokenPipeError):  # obstore wants no more than the range it asked for
                super().copyfile(source, outputfile)

        def send_header(self, name: str, value: str) -> None:
            value = faults.headers.get(name, value) if self.path.endswith(_FILES) else value
            if value:
                super().send_header(name, value)

        def end_headers(self) -> None:
            if self.path.endswith(_FILES):
                is_due = faults.due(faults.changes, self.path)
                self.send_header("ETag", f'"{len(faults.asked) if is_due else "same"}"')
                self.send_header("Content-MD5", "")
            super().end_headers()

        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            if not faults.is_allowed(self.path, self.headers):
                self.send_error(403)
                return False
            parts = urlsplit(self.path)  # a client that takes it for a proxy sends all of a URL
            path, folder = unquote(parts.path), parts._replace(scheme="", netloc="")
            self.path = path if "." in path else folder.geturl()
            return True

        def do_HEAD(self) -> None:
            if faults.due(faults.heads, self.path):
                self.send_error(500)
            else:
                super().do_HEAD()

        def do_GET(self) -> None:
            faults.asked.append(self.path)
            if faults.due(faults.errors, self.path) or faults.due(faults.heads, self.path):
                self.send_error(500)
            elif faults.due(faults.forbidden, self.path):
                self.send_error(403)
            elif faults.due(faults.gone, self.path):
                self.send_error(404)
            elif faults.due(faults.stalls, self.path):
                faults.over.wait(20)
                self.close_connection = True
            elif faults.due(faults.garbled, self.path):
                size = (root / self.path.lstrip("/")).stat().st_size
                self.send_response(200)
                self.send_header("Content-Length", str(size))
                self.end_headers()
                self.wfile.write(b"x" * size)
            elif faults.due(faults.cuts, self.path):
                self.send_response(206 if self.headers.get("Range") else 200)
                self.send_header("Content-Range", "bytes 0-19999/20000")
                self.send_header("Content-Length", "20000")
                self.end_headers()
                self.wfile.write(b"x" * 1000)
                self.close_connection = True
            elif (asked := self.headers.get("Range")) and faults.has_ranges:
                self._send_range(asked)
            else:
                super().do_GET()

        def _send_range(self, asked: str) -> None:
            path = root / self.path.lstrip("/")
            data = path.read_bytes()
            begin, end = map(int, asked.removeprefix("bytes=").split("-"))
            if faults.due(faults.wrong, self.path):
                data = bytes(len(data))
            self.send_response(206)
            last = min(end, len(data) - 1)
            faults.sent.append((self.path, begin, last + 1))
            self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
            self.send_header("Content-Range", f"bytes {begin}-{last}/{len(data)}")
            self.send_header("Content-Length", str(len(data[begin : end + 1])))
            self.end_headers()
            self.wfile.write(data[begin : end + 1])

    return Handler


@contextmanager
def serve(root: Path, host: str = "127.0.0.1") -> Iterator[tuple[str, Faults]]:
    """Serve a folder over HTTP: its URL, and what the server is to do wrong."""
    faults = Faults()
    kind = _SixServer if ":" in host else ThreadingHTTPServer
    server = kind((host, 0), _create_handler(root, faults))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}", faults
    finally:
        faults.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _SixServer(ThreadingHTTPServer):
    address_family = socket.AF_INET6


class _SharedPortServer(ThreadingHTTPServer):
    allow_reuse_port = True  # beside the socket that keeps the place


class StoreProcess:
    """A store in a process of its own.

    Args:
        root: The folder that it serves.

    Attributes:
        url: Its URL, which stays the same when it is killed and starts again.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        # Bound and never listening: the port stays ours while the process is down.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._place.bind(("127.0.0.1", 0))
        self._port = self._place.getsockname()[1]
        self._process = self._start()
        self.url = f"http://127.0.0.1:{self._port}"

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, str(self._root), str(self._port)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        return process

    def plan(self, fault: str, end: str, count: int) -> None:
        """Have a fault happen to the next requests for files whose names have this end."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps([fault, end, count]) + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill it, in the middle of whatever it sends."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def close(self) -> None:
        """Kill it, and give its port back."""
        self.kill()
        self._place.close()

    def restart(self) -> None:
        """Kill it and start it again, at the same port."""
        self.kill()
        self._process = self._start()


def main() -> None:
    """Serve the folder argv[1] at the port argv[2]; faults are lines of the standard input."""
    root, faults = Path(sys.argv[1]), Faults()
    server = _SharedPortServer(("127.0.0.1", int(sys.argv[2])), _create_handler(root, faults))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        fault, end, count = json.loads(line)
        getattr(faults, fault)[end] = count


if __name__ == "__main__":
    main()
