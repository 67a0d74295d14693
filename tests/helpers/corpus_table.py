"""The tables in docs/formats.md of what each engine does with each file of the corpus."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).parents[2] / "docs" / "formats.md"
BEGIN, END = "<!-- corpus: written by tests/corpus_runs.py --write -->", "<!-- corpus: end -->"
COLUMNS = {"dali": "DALI", "torchvision": "torchvision", "pil": "pil"}
_DECODERS = ("DALI", "torchvision", "Pillow", "imagecodecs")
_WIDTH = 100
_PREFIX = "cannot be decoded or transformed: "
Outcomes = dict[str, dict[str, str]]
"""By engine, and by sample: who decodes it, or why it is refused."""


def render(outcomes: Outcomes) -> str:
    """A table of who decodes what, and a list of what is refused and why."""
    return "\n".join([*_table(outcomes), "", *refusals(outcomes["dali"])])


def _table(outcomes: Outcomes) -> Iterator[str]:
    """Samples of a format that fare alike share lines."""
    yield "| format | files | " + " | ".join(COLUMNS.values()) + " |"
    yield "| --- " * (2 + len(COLUMNS)) + "|"
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in outcomes["dali"]:
        kind, rest = _split(name)
        decoders = (_decoder(outcomes[engine][name]) for engine in COLUMNS)
        groups.setdefault((kind, *decoders), []).append(rest)
    order = list(dict.fromkeys(kind for kind, *_ in groups))
    for (kind, *decoders), files in sorted(groups.items(), key=lambda g: order.index(g[0][0])):
        rest = f" | {' | '.join(decoders)} |"
        for line in _lines(files, _WIDTH - len(f"| {kind} | {rest}")):
            yield f"| {kind} | {line}{rest}"


def refusals(outcomes: dict[str, str]) -> list[str]:
    """The list of what one engine refuses."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, outcome in outcomes.items():
        if _decoder(outcome) == "refused":
            reason = outcome.removeprefix(_PREFIX).partition(" (it begins")[0]
            reasons.setdefault((reason, _split(name)[0]), []).append(_split(name)[1])
    items = [
        f"- {kind}, {'; '.join(files)}: {reason.removeprefix(f'{kind}: ')}."
        for (reason, kind), files in reasons.items()
    ]
    return [line for item in items for line in textwrap.wrap(item, _WIDTH, subsequent_indent="  ")]


def column(engine: str) -> dict[str, str]:
    """Of the committed table, what it says of an engine: by sample, who decodes it, or
    "refused".
    """
    place, found = 2 + list(COLUMNS).index(engine), {}
    for line in written().splitlines()[2:]:
        if line.startswith("|"):
            kind, files, *decoders = (cell.strip() for cell in line.strip("|").split("|"))
            found |= {f"{kind}, {file}": decoders[place - 2] for file in files.split("; ")}
    return found


def decoders(outcomes: dict[str, str]) -> dict[str, str]:
    """By sample, who decodes it, or "refused"."""
    return {name: _decoder(outcome) for name, outcome in outcomes.items()}


def written() -> str:
    """The committed table and list."""
    return FILE.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def write(outcomes: Outcomes) -> None:
    before, _, rest = FILE.read_text().partition(BEGIN)
    FILE.write_text(f"{before}{BEGIN}\n{render(outcomes)}\n{END}{rest.partition(END)[2]}")


def _lines(names: list[str], width: int) -> Iterator[str]:
    line = names[0]
    for name in names[1:]:
        if len(line) + 2 + len(name) > width:
            yield line
            line = name
        else:
            line += f"; {name}"
    yield line


def _split(name: str) -> tuple[str, str]:
    kind, _, rest = name.partition(", ")
    return kind, rest


def _decoder(outcome: str) -> str:
    return outcome if outcome in _DECODERS else "refused"
