"""Writes an inspection as report.html, one file that needs no network, and inspect.json."""

import base64
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe.bench.annotation_drawing import LABELS, draw_annotations
from gpupipe.bench.report import render_page
from gpupipe.dataset.annotation_columns import scale_to_pixels, take_annotations
from gpupipe.dataset.spec import Spec
from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import apply_orientation
from gpupipe.errors import GpupipeError, counted
from gpupipe.inspection.examine import MIN_SIDE, decode_reduced
from gpupipe.inspection.faults import KINDS, Sample
from gpupipe.inspection.findings import Finding
from gpupipe.inspection.statistics import Counts

_SIDE = 160
"""The longest side of a picture in pixels."""
_GROUPS, _OF_GROUP, _BARS = 12, 4, 20
"""How many groups of a finding, images of a group and bars of a histogram the page shows."""
_WITH_BOXES = ("outside", "tiny", "annotations", "sizes")


def write(folder: Path, name: str, results: dict[str, Any], findings: Sequence[Finding]) -> Path:
    """Write report.html and inspect.json to `folder`; return the path of report.html.

    Args:
        folder: The folder, created if needed.
        name: The name of the config.
        results: What `findings.as_json` returns.
        findings: The findings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=2) + "\n"
    (folder / "inspect.json").write_text(text, encoding="utf-8")
    found = [finding for finding in findings if finding.groups]
    page = folder / "report.html"
    text = render_page(
        __package__,
        "report.html.j2",
        title=f"gpupipe inspect: {name}",
        what=", ".join(
            f"{counted(side['images'], 'image')} in {data}"
            for data, side in results["data"].items()
        ),
        verdict=[_describe_verdict(found)],
        found=bool(found),
        headers_only=results["headers_only"],
        min_side=MIN_SIDE,
        rows=[(f.kind, f"{f.count:,}", KINDS[f.kind]) for f in findings],
        data={data: _describe_side(side) for data, side in results["data"].items()},
        findings=[_describe_finding(finding) for finding in found],
    )
    page.write_text(text, encoding="utf-8")
    return page


def _describe_verdict(found: Sequence[Finding]) -> str:
    if not found:
        return "Nothing wrong was found."
    return f"Found: {', '.join(f'{f.count:,} {f.kind}' for f in found)}."


def _describe_side(side: dict[str, Any]) -> dict[str, Any]:
    values = side["normalize"]
    return {
        "facts": [
            ("images", f"{side['images']:,}"),
            ("unreadable", f"{side['unreadable']:,}"),
            ("size", f"{side['bytes'] / 1e6:,.1f} MB"),
        ],
        "normalize": values and f"{{mean: {values['mean']}, std: {values['std']}}}",
        "histograms": [
            (title, list(_iterate_bars(counts)))
            for title, counts in side["histograms"].items()
            if counts
        ],
    }


def _iterate_bars(counts: Counts) -> Iterator[tuple[str, str, float]]:
    """Yield label, count and length in percent of each bar; the last one sums up the rest."""
    rest = counts[_BARS:]
    shown = counts[:_BARS]
    if rest:
        shown = [*shown, (f"{len(rest):,} more, each", sum(n for _, n in rest) // len(rest))]
    largest = max(count for _, count in shown)
    for label, count in shown:
        yield label, f"{count:,}", round(100 * count / max(largest, 1), 1)


def _describe_finding(finding: Finding) -> dict[str, Any]:
    groups, limit = finding.groups, _OF_GROUP
    if all(len(group) == 1 for group in groups):  # one row of pictures
        groups, limit = [[group[0] for group in groups]], _GROUPS * _OF_GROUP
    groups = [group[:limit] for group in groups[:_GROUPS]]
    shown = sum(map(len, groups))
    more = f"The first {shown} of {finding.count:,} images; inspect.json has all."
    return {
        "title": f"{finding.kind}: {KINDS[finding.kind]}",
        "more": more if shown < finding.count else "",
        "groups": [
            [_describe_sample(sample, finding.kind in _WITH_BOXES) for sample in group]
            for group in groups
        ],
    }


def _describe_sample(sample: Sample, with_boxes: bool) -> dict[str, str]:
    facts = sample.scan.facts[sample.row]
    size = f"{facts['width']} x {facts['height']}" if facts["height"] else ""
    label = f"class {sample.label}" if sample.label else ""
    return {
        "name": sample.full_name,
        "more": "; ".join(filter(None, (size, label, sample.why))),
        "picture": _draw(sample, with_boxes),
    }


def _draw(sample: Sample, with_boxes: bool) -> str:
    """Return a small JPEG of a sample in base64, upright or with boxes; "" for a broken file."""
    from PIL.Image import fromarray

    scan = sample.scan
    if sample.row in scan.errors:
        return ""
    options = DecodeOptions("rgb" if scan.channels == 3 else "gray")
    try:
        encoded = DecoderChain().open(scan.index.read(sample.row, scan.field), options)
        pixels = decode_reduced(encoded, options.mode, _SIDE)
    except (OSError, ValueError, RuntimeError, GpupipeError):  # changed since it was examined
        return ""
    if encoded.header.orientation > 1 and not with_boxes:
        pixels = apply_orientation(pixels, encoded.header.orientation)
    picture = fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).convert("RGB")
    if with_boxes:
        picture.thumbnail((2 * _SIDE, 2 * _SIDE))
        _draw_boxes(picture, sample, encoded.size)
    picture.thumbnail((2 * _SIDE, _SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return base64.b64encode(buffer.getvalue()).decode()


def _draw_boxes(picture: Any, sample: Sample, size: tuple[int, int]) -> None:
    """Draw all boxes of a sample, whose image has the [height, width] `size`, over its picture."""
    import torch

    columns = take_annotations(sample.scan.index.annotations, np.array([sample.row]))
    columns = scale_to_pixels(columns, sample.scan.field, np.array([size]))
    scale = picture.width / size[1]
    rows = {
        name: torch.from_numpy(np.asarray(column.values) * (scale if column.kind == "boxes" else 1))
        for name, column in columns.items()
        if column.kind == "boxes" or name == LABELS
    }
    specs = {name: Spec.of_boxes() for name in rows if name != LABELS}
    draw_annotations(picture, rows, specs, sample.scan.index.classes)
