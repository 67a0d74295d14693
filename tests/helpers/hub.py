"""A hub of data sets on loopback: the routes that huggingface_hub's HfFileSystem asks for."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

MEMBER, STRANGER = "hf_member", "hf_stranger"
"""Tokens. Only that of a member opens gated repositories."""
_PAGE = 4


@dataclass
class Hub:
    """What a hub has, and what it was asked.

    Attributes:
        url: Its endpoint.
        revisions: The folder of each revision of each data set.
        gated: The data sets whose files only members get. Anyone may list them, as on the hub.
        stalled: The ends of paths that are not answered before `over` is set.
        garbled: The names of files that come with other bytes.
        asked: The path of each request.
        sent: The path, begin and end of what was sent of each file.
    """

    url: str = ""
    revisions: dict[tuple[str, str], Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    stalled: set[str] = field(default_factory=set)
    garbled: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    sent: list[tuple[str, int, int]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def list_asked(self, route: str) -> list[str]:
        """Return the paths of the requests for a route, such as "resolve"."""
        return [path for path in self.asked if f"/{route}/" in path]


def describe(root: Path, path: Path) -> dict[str, Any]:
    """Return the hub's entry for a file, which it keeps in LFS, or for a folder."""
    entry: dict[str, Any] = {"path": str(path.relative_to(root)), "size": 0}
    if path.is_dir():
        return entry | {"type": "directory", "oid": hashlib.sha1(str(path).encode()).hexdigest()}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    size = path.stat().st_size
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n"
    blob = b"blob %d\0" % len(pointer) + pointer.encode()
    lfs = {"oid": digest, "size": size, "pointerSize": len(pointer)}
    oid = hashlib.sha1(blob, usedforsecurity=False).hexdigest()
    return entry | {"type": "file", "size": size, "oid": oid, "lfs": lfs}


class _RefusedError(Exception):
    """The status of an answer, and its header X-Error-Code."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, form: bytes) -> None:
        url = urlsplit(self.path)
        self.hub.asked.append(url.path)
        if any(unquote(url.path).endswith(end) for end in self.hub.stalled):
            self.hub.over.wait(20)
        query = parse_qs(form.decode() or url.query)
        try:
            match url.path.split("/")[1:]:
                case ["api", "datasets", owner, name]:
                    self._find(f"{owner}/{name}", "main")
                    self._send_json({"id": f"{owner}/{name}"})
                case ["api", "datasets", owner, name, "revision", revision]:
                    self._find(f"{owner}/{name}", revision)
                    self._send_json({"id": f"{owner}/{name}"})
                case ["api", "datasets", owner, name, "tree", revision, *folder]:
                    root = self._find(f"{owner}/{name}", revision)
                    self._send_tree(root, root / unquote("/".join(folder)), query)
                case ["api", "datasets", owner, name, "paths-info", revision]:
                    root = self._find(f"{owner}/{name}", revision)
                    paths = [root / path for path in query["paths"]]
                    self._send_json([describe(root, path) for path in paths if path.exists()])
                case ["datasets", owner, name, "resolve", revision, *path]:
                    repository = f"{owner}/{name}"
                    file = self._find(repository, revision) / unquote("/".join(path))
                    self._check_access(repository)
                    self._redirect(file)
                case ["content", *path]:
                    self._send_file(Path("/", unquote("/".join(path))))
                case _:
                    raise _RefusedError(404, "")
        except _RefusedError as e:
            self._send(e.args[0], b"", {"X-Error-Code": e.args[1]} if e.args[1] else {})

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _find(self, repository: str, revision: str) -> Path:
        """Return the folder of a revision."""
        if (repository, "main") not in self.hub.revisions:
            raise _RefusedError(404, "RepoNotFound") if self._token() else _RefusedError(401, "")
        folder = self.hub.revisions.get((repository, unquote(revision)))
        if folder is None:
            raise _RefusedError(404, "RevisionNotFound")
        return folder

    def _check_access(self, repository: str) -> None:
        if repository in self.hub.gated and self._token() != MEMBER:
            raise _RefusedError(403 if self._token() else 401, "GatedRepo")

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _send_json(self, content: Any, **headers: str) -> None:
        headers["Content-Type"] = "application/json"
        self._send(200, json.dumps(content).encode(), headers)

    def _send_tree(self, root: Path, folder: Path, query: dict[str, list[str]]) -> None:
        if not folder.is_dir():
            raise _RefusedError(404, "EntryNotFound")
        is_recursive = query.get("recursive", ["false"])[0].lower() == "true"
        paths = sorted(folder.rglob("*") if is_recursive else folder.iterdir())
        begin = int(query.get("cursor", ["0"])[0])
        page, headers = paths[begin : begin + _PAGE], {}
        if begin + _PAGE < len(paths):
            rest = f"recursive={is_recursive}&cursor={begin + _PAGE}"
            path = urlsplit(self.path).path
            headers = {"Link": f'<{self.hub.url}{path}?{rest}>; rel="next"'}
        self._send_json([describe(root, path) for path in page], **headers)

    def _redirect(self, file: Path) -> None:
        """Send the client to where the content is, as for files in LFS."""
        if not file.is_file():
            raise _RefusedError(404, "EntryNotFound")
        self._send(302, b"", {"Location": f"{self.hub.url}/content{file}", "X-Repo-Commit": "c0"})

    def _send_file(self, file: Path) -> None:
        content, begin, end = file.read_bytes(), 0, file.stat().st_size
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1, end) if last else end
        self.hub.sent.append((file.name, begin, end))
        if file.name in self.hub.garbled:
            content = bytes(len(content))
        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"} if asked else {}
        self._send(206 if asked else 200, content[begin:end], headers)


@contextmanager
def serve() -> Iterator[Hub]:
    """Serve a hub without data sets."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
