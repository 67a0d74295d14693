"""An installed package with steps, sources or engines of its own, as pip would leave it."""

from pathlib import Path


def install(folder: Path, name: str, code: str, **entry_points: str) -> Path:
    """Put the module `name` into `folder`.

    Args:
        folder: The folder; it must be on sys.path.
        name: The name of the module, and of the package.
        code: The module's source.
        **entry_points: The module's classes by the name of their step; by `source_NAME` for a
            source, by `engine_NAME` for an engine, by `decoder_NAME` for a decoder, and by
            `batch_NAME` for a step of the batch stage.
    """
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = {"source": "sources", "engine": "engines", "batch": "batch_steps"}
    groups["decoder"] = "decoders"
    lines: dict[str, list[str]] = {"steps": [], **{group: [] for group in groups.values()}}
    for key, value in entry_points.items():
        kind, _, rest = key.partition("_")
        group, entry = (groups[kind], rest) if kind in groups else ("steps", key)
        lines[group].append(f"{entry} = {name}:{value}")
    sections = [f"[gpupipe.{group}]\n" + "\n".join(rows) for group, rows in lines.items()]
    (info / "entry_points.txt").write_text("\n".join([*sections, ""]))
    (folder / f"{name}.py").write_text(code)
    return folder
