"""The report of a comparison: results.json, plots, and one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.bench import compare, plots, tables
from gpupipe.bench.compare import Comparison
from gpupipe.bench.parity import Agreement, side_by_side
from gpupipe.config import Config
from gpupipe.source import Index

MAGNIFIED = 16
_GREY = 128
_SAMPLES = 4


def write(folder: Path, comparison: Comparison, agreements: Sequence[Agreement], config: Config, index: Index, devices: Sequence[str]) -> Path:
    """report.html in `folder`, with results.json and the plots beside it. devices: those on which DALI is shown beside torchvision."""
    folder.mkdir(parents=True, exist_ok=True)
    results = comparison.as_json() | {"parity": [asdict(a) | {"holds": a.holds} for a in agreements]}
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    made = plots.save(comparison, folder)
    page = folder / "report.html"
    page.write_text(_page(comparison, agreements, config, index, devices, [p for p in made if p.suffix == ".svg"]), encoding="utf-8")
    return page


def _page(
    comparison: Comparison, agreements: Sequence[Agreement], config: Config, index: Index, devices: Sequence[str], drawings: Sequence[Path]
) -> str:  # fmt: skip
    from jinja2 import Environment
    from markupsafe import Markup

    template = Environment(autoescape=True).from_string(files("gpupipe.bench").joinpath("report.html.j2").read_text(encoding="utf-8"))
    rounds = max((len(r.outcomes) for r in comparison.measured), default=0)
    samples = list(_rows(config, index, devices)) if devices else []
    return template.render(
        title=_title(comparison, config),
        notes=comparison.notes,
        interrupted=comparison.interrupted,
        verdict=compare.verdict(comparison),
        speed_columns=tables.speed_columns(comparison),
        speed_rows=tables.speed_rows(comparison),
        rounds=f"{rounds} round{'s' * (rounds != 1)}",
        cores=f"{len(comparison.cores)} core{'s' * (len(comparison.cores) != 1)}",
        plots=[Markup(_inline(p)) for p in drawings],  # drawn here, by matplotlib
        agreements=agreements,
        samples=samples,
        sample_columns=["torchvision", *(f"DALI on {d}" for d in devices), *(f"difference, {d}" for d in devices)],
        magnified=MAGNIFIED,
        machine=_machine(comparison.as_json()["machine"]),
    )


def _title(comparison: Comparison, config: Config) -> str:
    data = next((o.data for r in comparison.measured for o in r.outcomes), None)
    what = f", {data['images']:,} images, batches of {data['batch_size']}" if data else ""
    return f"{config.name}: pipeline {config.pipeline.name}{what}"


def _machine(found: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    gpu = f"{found['gpu']}, " if found["gpu"] else ""
    return f"{found['time']}; {gpu}{found['processor']}, {found['cores']} cores, {found['memory_gib']} GiB; Python {found['python']}, {packages}"


def _inline(drawing: Path) -> str:
    """An SVG without what stands before its root."""
    text = drawing.read_text(encoding="utf-8")
    return text[text.index("<svg") :]


def _rows(config: Config, index: Index, devices: Sequence[str]) -> Any:
    """A row for each sample: torchvision's image, DALI's, and the differences; PNGs in base64."""
    for expected, made in side_by_side(config, index, devices, _SAMPLES):
        differences = [np.clip(_GREY + MAGNIFIED * (m.astype(int) - expected.astype(int)), 0, 255).astype(np.uint8) for m in made]
        yield [_png(image) for image in (expected, *made, *differences)]


def _png(image: NDArray[np.uint8]) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
