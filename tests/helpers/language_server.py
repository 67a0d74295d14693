"""A client of yaml-language-server, as an editor is one: JSON-RPC over its standard streams."""

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any


class LanguageServer:
    """A running yaml-language-server. Positions are (line, column), both from 0."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._process = subprocess.Popen(
            [*command, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
        )
        self._count = 0
        self._ready: list[dict[str, Any]] = []
        capabilities = {"workspace": {"configuration": True}}
        self.request(
            "initialize", processId=None, rootUri=folder.as_uri(), capabilities=capabilities
        )
        self.notify("initialized")

    def __enter__(self) -> "LanguageServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def open(self, path: Path) -> list[dict[str, Any]]:
        """Open a file, and return its red marks."""
        document = {"languageId": "yaml", "version": 1, "text": path.read_text()}
        self.notify("textDocument/didOpen", textDocument={"uri": path.as_uri()} | document)
        while True:
            message = self._next("textDocument/publishDiagnostics")
            if message["params"]["uri"] == path.as_uri():
                return message["params"]["diagnostics"]

    def complete(self, path: Path, line: int, column: int) -> list[str]:
        """Return the labels that are offered at a position."""
        return list(self.find_insertions(path, line, column))

    def find_insertions(self, path: Path, line: int, column: int) -> dict[str, str]:
        """Return, for each label that is offered at a position, the text that it inserts."""
        found = self._at("textDocument/completion", path, line, column)
        return {item["label"]: item["insertText"] for item in (found or {}).get("items", [])}

    def hover(self, path: Path, line: int, column: int) -> str:
        """Return the text that is shown at a position."""
        found = self._at("textDocument/hover", path, line, column)
        return found["contents"]["value"] if found else ""

    def _at(self, method: str, path: Path, line: int, column: int) -> Any:
        position = {"line": line, "character": column}
        return self.request(method, textDocument={"uri": path.as_uri()}, position=position)

    def request(self, method: str, **params: Any) -> Any:
        """Send a request, and return the result."""
        self._count += 1
        self._send({"id": self._count, "method": method, "params": params})
        while True:
            message = self._read()
            if message.get("id") == self._count and "method" not in message:
                assert "error" not in message, message
                return message["result"]
            self._ready.append(message)

    def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

    def _next(self, method: str) -> dict[str, Any]:
        """Return the next notification of a method."""
        while True:
            message = self._ready.pop(0) if self._ready else self._read()
            if message.get("method") == method:
                return message

    def _read(self) -> dict[str, Any]:
        """Return the next message; answer the server's own requests."""
        stream = self._process.stdout
        assert stream is not None
        length = 0
        while line := stream.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        assert length, "the language server ended"
        message: dict[str, Any] = json.loads(stream.read(length))
        if "id" in message and "method" in message:
            items = message.get("params", {}).get("items", [])
            self._send({"id": message["id"], "result": [{} for _ in items] or None})
        return message

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps({"jsonrpc": "2.0"} | message).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        self._process.stdin.flush()
