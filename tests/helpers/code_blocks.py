"""The code blocks of a page of the docs, and the process that runs them in order.

A page says in comments, which readers do not see, what its blocks need:

    <!-- before: Python code that makes what the next block starts from -->
    <!-- not run: why the next block cannot run here -->

A block whose first line is a comment with a file's name, `# train.yaml`, is written to that file.
Python blocks of a page share their names, as in one script. Bash blocks run in a shell. Text in
`replace`, a dict that `before` may set, is replaced in the blocks after it.
"""

import contextlib
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

_PART = re.compile(
    r"^```(?P<language>\w+)\n(?P<code>.*?)^```$"
    r"|^<!-- (?P<comment>before|not run): ?(?P<text>.*?)-->$",
    re.M | re.S,
)
_FILE = re.compile(r"^# ([\w./-]+\.(?:yaml|py|cfg|toml))\n", re.M)


@dataclass(frozen=True)
class Block:
    """A block of code, or the Python code of a comment `before`.

    Attributes:
        language: "python", "yaml", "bash", ... or "before".
        code: Its text.
        line: The number of its first line in the page.
        not_run: Why it cannot run; "" if it runs.
    """

    language: str
    code: str
    line: int
    not_run: str = ""

    @property
    def file(self) -> str:
        """The name of the file that it is; "" if it is none."""
        found = _FILE.match(self.code)
        return found[1] if found else ""


def read_blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page that name a language, and its comments `before`."""
    text = page.read_text(encoding="utf-8")
    blocks, not_run = [], ""
    for match in _PART.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["comment"] == "not run":
            not_run = " ".join(match["text"].split())
        elif match["comment"]:
            blocks.append(Block("before", match["text"], line))
        else:
            blocks += _split(Block(match["language"], match["code"], line + 1, not_run))
            not_run = ""
    return blocks


def _split(block: Block) -> list[Block]:
    """Return the files of a block that shows several."""
    starts = [match.start() for match in _FILE.finditer(block.code)]
    parts = zip(starts, [*starts[1:], None], strict=False)
    return (
        [
            replace(
                block,
                code=block.code[begin:end],
                line=block.line + block.code.count("\n", 0, begin),
            )
            for begin, end in parts
        ]
        if len(starts) > 1
        else [block]
    )


def write_blocks(blocks: list[Block], path: Path) -> None:
    """Write blocks for `python code_blocks.py PATH`, which runs them."""
    path.write_text(json.dumps([asdict(block) for block in blocks]))


def run_blocks(blocks: list[Block]) -> None:
    """Run the blocks in the working directory; end with the first that fails."""
    names: dict[str, Any] = {"__name__": "__main__", "replace": {}}
    with contextlib.ExitStack() as stack:
        names["stack"] = stack
        for block in blocks:
            _run(block, names)


def _run(block: Block, names: dict[str, Any]) -> None:
    code = block.code
    for old, new in names["replace"].items():
        code = code.replace(old, new)
    if block.file:
        Path(block.file).parent.mkdir(parents=True, exist_ok=True)
        Path(block.file).write_text(code)
    elif block.not_run:
        return
    elif block.language in ("python", "before"):
        shifted = "\n" * (block.line - 1) + code
        exec(compile(shifted, "page", "exec"), names)
    elif block.language == "bash":
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], check=False)
        if done.returncode:
            sys.exit(f"line {block.line}: the shell ended with {done.returncode}")


if __name__ == "__main__":
    run_blocks([Block(**fields) for fields in json.loads(Path(sys.argv[1]).read_text())])
