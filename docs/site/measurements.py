"""Writes the page of measurements, and the table of the front page, from benchmarks/results."""

import json
from statistics import median
from typing import Any

from repository_files import ROOT

PLACE = "<!-- measurements -->"
"""Where the front page has the table."""
PLACE_OF_PEERS = "<!-- rates of peers -->"
"""Where the page of peers has its table."""
_WORKLOADS = ("lfw-affine", "imagenet_train", "imagenet_eval")
SOURCES = (
    "benchmarks/core.py",
    *(f"benchmarks/results/core.{name}.engines.json" for name in _WORKLOADS),
    "benchmarks/peers.py",
    "benchmarks/results/peers.json",
)
"""What the table of the front page links to."""
_OTHER_SCRIPTS = {
    "detector": "examples/train_detector.py",
    "first_gpu": "benchmarks/first_gpu.sh",
    "ray": "benchmarks/ray_engine.py",
    "second_gpu": "benchmarks/gpu.py",
    "third_gpu": "benchmarks/first_gpu.sh",
    "server_pipelining": "examples/server.py",
}
_RESULTS = ROOT / "benchmarks" / "results"


def write_summary() -> str:
    """Return the table of the front page: each workload against what is written by hand."""
    lines = [
        "Images a second, and how many times as many gpupipe delivers (lowest to highest round):\n",
        "| pipeline | gpupipe | DALI, written by hand | torchvision, best DataLoader |",
        "| --- | --- | --- | --- |",
    ]
    links = []
    for name in _WORKLOADS:
        content = _read(f"core.{name}.engines")
        (workload,) = content["workloads"].values()
        rounds = workload["rounds"]
        own = rounds["gpupipe-cpu"]
        other = next(contestant for contestant in rounds if contestant.startswith("torchvision"))
        cells = [f"{_rate(own):,.0f}"]
        for contestant in ("hand-written", other):
            ratios = [
                a["images_per_second"] / b["images_per_second"]
                for a, b in zip(own, rounds[contestant], strict=True)
            ]
            cells.append(
                f"{_rate(rounds[contestant]):,.0f}<br>"
                f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )
        lines.append(f"| `{workload['workload']['pipeline']}` | {' | '.join(cells)} |")
        links.append(f"[{name}](../benchmarks/results/core.{name}.engines.json)")
    machine = content["machine"]
    return "\n".join(lines) + (
        f"\n\nMedians of {len(own)} rounds on {machine['cores']} cores "
        f"({machine['processor']}, no GPU): "
        "[`benchmarks/core.py --engines`](../benchmarks/core.py) measured them, and the results "
        f"({', '.join(links)}) have all of them."
    )


def write_peers() -> str:
    """Return the table of the page of peers, the fastest first."""
    if not (_RESULTS / "peers.json").exists():
        return (
            "[`benchmarks/peers.py`](../benchmarks/peers.py) measures them, in a side environment."
        )
    content = _read("peers")
    rounds, machine = content["rounds"], content["machine"]
    names = sorted(rounds, key=lambda name: -_rate(rounds[name]))
    lines = [
        "| loader | version | images/s | lowest to highest round |",
        "| --- | --- | --- | --- |",
    ]
    for name in names:
        rates = [each["images_per_second"] for each in rounds[name]]
        title = "torch's DataLoader" if name == "torch" else name
        lines.append(
            f"| {title} | {content['versions'][name]} | {median(rates):,.0f} | "
            f"{min(rates):,.0f} to {max(rates):,.0f} |"
        )
    return "\n".join(lines) + (
        "\n\nA random resized crop of 224x224 and a flip of JPEGs of 500x375, as uint8 batches of "
        f"128: medians of {len(rounds['gpupipe'])} interleaved rounds on {machine['cores']} cores "
        f"({machine['processor']}, no GPU), by [`benchmarks/peers.py`](../benchmarks/peers.py) "
        "([results](../benchmarks/results/peers.json))."
    )


def write_page() -> str:
    """Return the page that names, for each result, the script and the machine."""
    rows: dict[str, list[str]] = {}
    for path in sorted(_RESULTS.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        rows.setdefault(_describe_machine(content), []).append(_write_row(path.stem, content))
    lines = [
        "# Measurements\n",
        "Each file of results is written by a script, which reproduces it, and names the machine.",
    ]
    for machine, written in sorted(rows.items()):
        lines += [f"\n## {machine}\n", "| results | time | measured by |", "| --- | --- | --- |"]
        lines += written
    return "\n".join(lines) + "\n"


def _describe_machine(content: dict[str, Any]) -> str:
    machine = content.get("machine", {})
    gpu = machine.get("gpu") or "no GPU"
    processor = machine.get("processor", "processor not recorded")
    return f"{processor}, {machine.get('cores', '')} cores, {gpu}"


def _write_row(name: str, content: dict[str, Any]) -> str:
    time = content.get("machine", {}).get("time", "")[:10]
    link = f"[{name}](../../benchmarks/results/{name}.json)"
    return f"| {link} | `{time}` | {_find_script(name, content)} |"


def _find_script(name: str, content: dict[str, Any]) -> str:
    command = content.get("command", [])
    if isinstance(command, str):
        return f"`{command}`"
    stem = content.get("benchmark", name).partition(".")[0]
    scripts = [f"benchmarks/{stem}.py", f"tests/fuzz/{stem}.py", _OTHER_SCRIPTS.get(stem, stem)]
    script = next((path for path in scripts if (ROOT / path).is_file()), None)
    if script is None:
        return ""
    options = " ".join(_leave_out_folders(command[1:]))
    return f"[`{script}`](../../{script}){f' `{options}`' if options else ''}"


def _leave_out_folders(words: list[str]) -> list[str]:
    """Return options without `--data FOLDER` and `--out FOLDER`, places on the machine."""
    pairs = zip(words, ["", *words], strict=False)
    return [word for word, before in pairs if not {word, before} & {"--data", "--out"}]


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((_RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def _rate(rounds: list[dict[str, Any]]) -> float:
    return median(each["images_per_second"] for each in rounds)
