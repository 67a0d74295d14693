"""Tar archives of a small data set, and a real HTTP server that offers them."""

import functools
import gzip
import hashlib
import http.server
import io
import tarfile
import threading
from pathlib import Path

from gpupipe.sources.helpers.download import Dataset

FILES = {
    "flowers/rose/1.jpg": b"red",
    "flowers/rose/2.jpg": b"",
    "flowers/tulip/deep/3.jpg": bytes(range(256)) * 4000,
}


def tar_of(files: dict[str, bytes], mode: str = "w:gz", *more: tarfile.TarInfo) -> bytes:
    """Return a tar archive; the same arguments always give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w" if mode == "w:gz" else mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for member in more:
            tar.addfile(member)
    # tarfile would write the time into the header of gzip
    return gzip.compress(buffer.getvalue(), mtime=0) if mode == "w:gz" else buffer.getvalue()


def damaged(data: bytes) -> bytes:
    middle = len(data) // 2
    return (
        data[:middle] + bytes(b ^ 0x55 for b in data[middle : middle + 200]) + data[middle + 200 :]
    )


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


WANTED = {name.removeprefix("flowers/"): data for name, data in FILES.items()}


class Server:
    """Serves a folder over HTTP, and counts what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, 0
        server = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked += 1
                super().do_GET()

            def log_message(self, *message: object) -> None:
                """Nothing on the terminal."""

        self._http = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
        )
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def offer(
        self, data: bytes, sha256: str | None = None, file: str = "flowers.tar.gz"
    ) -> Dataset:
        (self.folder / file).write_bytes(data)
        return Dataset(
            "flowers", "Flowers", self.url(file), sha256 or hashlib.sha256(data).hexdigest()
        )

    def url(self, file: str) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/{file}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
