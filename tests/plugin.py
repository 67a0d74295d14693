"""An installed package with steps or sources of its own, as pip would leave it."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, name: str, code: str, **entry_points: str) -> Path:
    """Put the module `name` into `folder`; entry_points: its classes by the name of their step, or,
    behind `source_`, of their source.
    """
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    steps = [
        f"{key} = {name}:{value}"
        for key, value in entry_points.items()
        if not key.startswith("source_")
    ]
    sources = [
        f"{key.removeprefix('source_')} = {name}:{value}"
        for key, value in entry_points.items()
        if key.startswith("source_")
    ]
    (info / "entry_points.txt").write_text(
        "\n".join(["[gpupipe.steps]", *steps, "[gpupipe.sources]", *sources, ""])
    )
    (folder / f"{name}.py").write_text(code)
    return folder
