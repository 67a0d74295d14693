"""How each part of first_gpu.sh ended, as OUT/summary.json and OUT/summary.txt.

The script calls it so:

# note how a part ended (none: not started); what it printed moves into PART.json
summary.py ended OUT PART STATUS SECONDS LIMIT
summary.py print OUT                             # write the text, and print it
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any

_LOG_BYTES, _SHOWN = 100_000, 3000
_TIMED_OUT, _KILLED = 124, 137


def main() -> int:
    task, out, *words = sys.argv[1:]
    if task == "ended":
        ended(Path(out), *words)
        return 0
    return show(Path(out))


def ended(out: Path, part: str, status: str, seconds: str, limit: str) -> None:
    """Add a part to the summary. status: the exit status of `timeout`, or "none"."""
    result = _read(out / f"{part}.json")
    log = _take_log(out / f"{part}.log")
    if status != "none":
        _write(out / f"{part}.json", {"part": part, "finished": False} | result | {"log": log})
    checks = result.get("checks", [])
    entry = {
        "outcome": outcome(status, int(seconds) >= int(limit), result),
        "seconds": int(seconds),
        "headline": result.get("headline", ""),
        "checks": len(checks),
        "failed": [f"{c['check']}: {c['found']}" for c in checks if not c["holds"]],
    }
    if entry["outcome"] not in ("ok", "no time left"):
        entry["log"] = log[-_SHOWN:]
    _write(out / "summary.json", _read(out / "summary.json") | {part: entry})


def outcome(status: str, is_late: bool, result: dict[str, Any]) -> str:
    """How a part ended: ok, checks failed, timed out, crashed with SIGNAL, failed, no time left."""
    if status == "none":
        return "no time left"
    number = int(status)
    if number == _TIMED_OUT or (number == _KILLED and is_late):
        return "timed out"
    if number > 128:
        return f"crashed with {_signal(number - 128)}"
    if not result.get("finished"):
        return f"failed with status {number}"
    return "ok" if number == 0 else "checks failed"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def show(out: Path) -> int:
    summary = _read(out / "summary.json")
    lines = [f"{'part':12}{'outcome':24}{'seconds':>8}{'checks':>8}  "]
    for part, entry in summary.items():
        held = entry["checks"] - len(entry["failed"])
        counted = f"{held}/{entry['checks']}"
        row = f"{part:12}{entry['outcome']:24}{entry['seconds']:8}{counted:>8}"
        lines.append(f"{row}  {entry['headline']}")
        lines += [f"{'':12}FAILS {text.splitlines()[0][:300]}" for text in entry["failed"]]
        if "log" in entry and not entry["failed"]:
            lines += [f"{'':12}| {line}" for line in entry["log"].splitlines()[-5:]]
    text = "\n".join(lines) + "\n"
    (out / "summary.txt").write_text(text, encoding="utf-8")
    print(text, end="")
    return 0 if summary and all(e["outcome"] == "ok" for e in summary.values()) else 1


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _take_log(path: Path) -> str:
    """Remove a log, and return its end: a machine may give back few files."""
    try:
        text = path.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    except OSError:
        return ""
    path.unlink()
    return text


if __name__ == "__main__":
    sys.exit(main())
