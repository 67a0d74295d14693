"""Samples with lists of boxes, written in each format that a source reads lists from."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from gpupipe.formats.list_values import ListValues

WIDTH, HEIGHT = 64, 48
BOXES = [[[1.5, 2.0, 10.0, 20.0], [0.0, 0.0, 64.0, 48.0]], [], [[5.0, 6.0, 7.0, 8.0]], []]
NAMES = [["dog", "cat"], [], ["dog"], []]
Write = Callable[[Path, list[dict[str, Any]]], dict[str, Any]]


def rows(form: str = "struct of lists") -> list[dict[str, Any]]:
    """The columns of four samples, whose objects are a struct of lists or a list of structs."""
    found = []
    for n, (boxes, names) in enumerate(zip(BOXES, NAMES, strict=True)):
        objects: Any = {"bbox": boxes, "name": names, "score": [n + 0.5] * len(boxes)}
        if form == "list of structs":
            objects = [
                {"bbox": box, "name": name, "score": n + 0.5}
                for box, name in zip(boxes, names, strict=True)
            ]
        found.append({"path": f"{n}.png", "objects": objects})
    return found


def image() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), "teal").save(out, "PNG")
    return out.getvalue()


def write_images(folder: Path, samples: list[dict[str, Any]]) -> None:
    for sample in samples:
        (folder / sample["path"]).write_bytes(image())


def write_json_lines(folder: Path, samples: list[dict[str, Any]]) -> dict[str, Any]:
    write_images(folder, samples)
    (folder / "list.jsonl").write_text("\n".join(map(json.dumps, samples)))
    return {"source": "file_list", "file": str(folder / "list.jsonl")}


def write_table(folder: Path, samples: list[dict[str, Any]]) -> dict[str, Any]:
    write_images(folder, samples)
    pq.write_table(pa.Table.from_pylist(samples), folder / "list.parquet")
    return {"source": "file_list", "file": str(folder / "list.parquet")}


def _with_images(samples: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"image": {"bytes": image()}, "objects": sample["objects"]} for sample in samples]
    )


def write_parquet(folder: Path, samples: list[dict[str, Any]]) -> dict[str, Any]:
    pq.write_table(_with_images(samples[:2]), folder / "data-0.parquet")
    pq.write_table(_with_images(samples[2:]), folder / "data-1.parquet")
    return {"source": "parquet", "shards": str(folder / "data-*.parquet")}


def write_arrow(folder: Path, samples: list[dict[str, Any]]) -> dict[str, Any]:
    table = _with_images(samples)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as out,
        pa.ipc.new_stream(out, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=3)
    files = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(files))
    return {"source": "hf", "root": str(folder)}


def write_hub(folder: Path, samples: list[dict[str, Any]]) -> dict[str, Any]:
    (folder / "data").mkdir()
    name = "train-00000-of-00001.parquet"
    pq.write_table(_with_images(samples), folder / "data" / name, row_group_size=3)
    return {"source": "hf", "root": str(folder)}


def write_tar(folder: Path, samples: list[dict[str, Any]]) -> dict[str, Any]:
    with tarfile.open(folder / "a.tar", "w") as out:
        for n, sample in enumerate(samples):
            for ending, data in (("png", image()), ("json", json.dumps(sample).encode())):
                info = tarfile.TarInfo(f"{n}.{ending}")
                info.size = len(data)
                out.addfile(info, io.BytesIO(data))
    return {"source": "webdataset", "shards": str(folder / "a.tar")}


WRITERS: dict[str, Write] = {
    "jsonl": write_json_lines,
    "table": write_table,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "hub": write_hub,
    "tar": write_tar,
}


def plain(lists: ListValues) -> tuple[Any, list[int], dict[int, str]]:
    """The items, the counts and the faults of lists, to be compared."""
    values = lists.values if isinstance(lists.values, list) else lists.values.tolist()
    return values, lists.counts.tolist(), lists.faults
