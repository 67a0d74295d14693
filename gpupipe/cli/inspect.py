"""The command `gpupipe inspect`: looks at all files of a data set before it is trained on."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from gpupipe.cli.arguments import (
    ConfigName,
    JsonFile,
    OutputFolder,
    Overrides,
    options,
    write_all,
    write_json,
    writing,
)
from gpupipe.cli.console import Screen, console, format_size, read
from gpupipe.cli.printing import announce, print_error, say
from gpupipe.errors import counted, did_you_mean

if TYPE_CHECKING:
    from gpupipe.inspection.findings import Finding


@click.command()
@options
def inspect(
    config: ConfigName,
    overrides: Overrides,
    val: Annotated[
        str | None, "CONFIG", "The config of the validation data: finds what is in both."
    ] = None,
    fail_on: Annotated[
        str, "KIND[,KIND]...", "Exit with 1 if there are findings of these kinds, such as leaks."
    ] = "",
    headers: Annotated[bool, "Read headers alone: no statistics, hashes and duplicates."] = False,
    json_path: JsonFile = None,
    out: Annotated[
        Path | None, OutputFolder(), "Write report.html and inspect.json to this folder."
    ] = None,
) -> None:
    """Look at all image files of CONFIG on all cores: statistics, and what is wrong with them.

    What is known of a file is kept in the cache folder: a scan that was interrupted goes on, and
    files that have not changed are not read again.
    """
    announce(f"reading {config}")
    from gpupipe.inspection.findings import as_json, find_all
    from gpupipe.inspection.scan import scan
    from gpupipe.runtime.installation import require_extra

    fatal = _read_kinds(fail_on, headers, val is not None)
    if out:
        require_extra("inspect", ("jinja2", "cv2"), "the page of --out")
    if not headers:
        require_extra("inspect", ("cv2", "scipy"), "the search for nearly equal images")
    inputs = [("train", *read(config, overrides, here=True))]
    if val is not None:
        inputs.append(("val", *read(val, (), here=True)))
    with Screen(False) as screen:
        scans = [scan(*data, headers, screen.progress) for data in inputs]
        findings = find_all(scans)
    results = as_json(scans, findings)
    for name, facts in results["data"].items():
        _print_statistics(name, facts)
    _print_findings(findings)
    write_all(
        lambda: write_json(json_path, results),
        lambda: _write_report(out, inputs[0][1].name, results, findings),
    )
    failed = [finding.kind for finding in findings if finding.groups and finding.kind in fatal]
    if failed:
        print_error(f"--fail-on: {', '.join(failed)}")
        sys.exit(1)


def _write_report(
    folder: Path | None, name: str, results: dict[str, Any], findings: "Sequence[Finding]"
) -> None:
    """Write the page of --out to `folder`, unless it is None."""
    if folder is None:
        return
    from gpupipe.inspection import report

    with writing(folder):
        page = report.write(folder, name, results, findings)
    say(f"report: {page}")


def _read_kinds(text: str, headers: bool, has_val: bool) -> set[str]:
    """Return the kinds of findings that --fail-on names; raise click.BadParameter for others."""
    from gpupipe.inspection.faults import IMPLIED, KINDS, OF_PIXELS

    kinds: set[str] = set()
    for name in filter(None, map(str.strip, text.split(","))):
        problem = ""
        if name not in KINDS:
            problem = f"'{name}' is no kind of finding{did_you_mean(name, KINDS)}"
        elif headers and name in OF_PIXELS:
            problem = f"headers alone do not show '{name}': leave out --headers"
        elif name == "leaks" and not has_val:
            problem = "leaks are between two data sets: name the other one with --val"
        if problem:
            raise click.BadParameter(problem, param_hint="--fail-on")
        kinds.update(IMPLIED.get(name, (name,)))
    return kinds


def _print_statistics(name: str, facts: dict[str, Any]) -> None:
    formats = ", ".join(f"{kind} {count:,}" for kind, count in facts["histograms"]["format"])
    say(f"{name}: {counted(facts['images'], 'image')}, {format_size(facts['bytes'])}")
    say(f"  formats: {formats or 'none'}")
    for side, (low, middle, high) in facts["sides"].items():
        say(f"  {side}: {low:,} to {high:,} pixels, {middle:,} at the median")
    if values := facts["normalize"]:
        say(f"  - normalize: {{mean: {values['mean']}, std: {values['std']}}}")


def _print_findings(findings: "Sequence[Finding]") -> None:
    from gpupipe.bench.tables import new_table
    from gpupipe.inspection.faults import KINDS

    rows = []
    for finding in findings:
        first = ""
        if finding.groups:
            few = finding.groups[0][:2]
            first = " and ".join(f"{s.full_name}{f': {s.why}' if s.why else ''}" for s in few)
        rows.append((finding.kind, f"{finding.count:,}", first or KINDS[finding.kind]))
    console().print(new_table("", "finding", "images", "the first, or what it means", rows=rows))
