"""Damages files of annotations: cut texts, wrong types, huge numbers, brackets without end, letters
in place of numbers, XML entities. The sources must name the file, or the sample with its record.

python tests/fuzz/fuzz_annotations.py 2000    # damages; prints how often what happened
"""

import collections
import copy
import json
import os
import random
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpupipe.dataset.index import Index
from gpupipe.dataset.source import Source
from gpupipe.errors import DataError
from gpupipe.sources.coco import Coco
from gpupipe.sources.file_list import FileList
from gpupipe.sources.voc import Voc
from helpers.coco_files import document, voc_xml, write, write_voc

MAX_SECONDS = 20.0
MAX_BYTES = 400 << 20
"""How much the process may grow, whatever the file holds."""
NONSENSE: list[Any] = [
    *(None, True, "", "abc", "12x", "é\0", [], {}, [[[]]], {"a": [1]}),
    *(1e308, -1e308, 1e39, 10**30, -(10**30), 2**63, float("nan"), float("inf")),
    *([[0] * 50] * 50, {"bbox": {"bbox": {}}}),
]
VALID = {
    *(("area", "None"), ("iscrowd", "True"), ("name", "''"), ("name", "'abc'"), ("name", "'12x'")),
    *(("name", "'é\\x00'"), ("file_name", "'abc'"), ("file_name", "'12x'"), ("bbox", "True")),
}
"""Pairs of a key and the repr() of a value that are in order."""
Damage = tuple[str, bytes, bool]
"""The kind of a damage, the damaged file, and whether the source must name it."""


def damage_json(whole: dict[str, Any], draw: random.Random) -> Damage:
    kind = draw.choice(["wrong value", "wrong number", "missing key", "cut", "bytes", "brackets"])
    changed = copy.deepcopy(whole)
    text = json.dumps(whole).encode()
    if kind in ("wrong value", "missing key"):
        array = draw.choice(["images", "annotations", "annotations", "annotations", "categories"])
        record = draw.choice(changed[array])
        key = draw.choice([key for key in record if key not in ("segmentation", "id")])
        if kind == "missing key":
            del record[key]
            is_named = key not in ("area", "iscrowd", "width", "height")
        else:
            record[key] = draw.choice(NONSENSE)
            is_named = (key, repr(record[key])) not in VALID
        return f"JSON: {kind}", json.dumps(changed).encode(), is_named
    if kind == "wrong number":
        box = draw.choice(changed["annotations"])["bbox"]
        box[draw.randrange(4)] = draw.choice(NONSENSE)
        return f"JSON: {kind}", json.dumps(changed).encode(), True
    if kind == "cut":
        return f"JSON: {kind}", text[: draw.randrange(len(text))], True
    place = draw.randrange(len(text))
    if kind == "brackets":
        opened = draw.choice([b"[", b'{"a":', b'["']) * draw.choice([1, 50, 20_000])
        return f"JSON: {kind}", text[:place] + opened + text[place:], False
    return f"JSON: {kind}", _damage_bytes(text, place, draw), False


def damage_lines(rows: list[dict[str, Any]], draw: random.Random) -> Damage:
    kind = draw.choice(["wrong value", "wrong number", "missing key", "cut", "bytes"])
    changed = copy.deepcopy(rows)
    row = draw.choice(changed)
    if kind == "wrong value":
        row["o"] = draw.choice(NONSENSE)
    elif kind == "wrong number":
        row["o"]["box"][0][draw.randrange(4)] = draw.choice(NONSENSE)
    elif kind == "missing key":
        del row[draw.choice(["o", "path"])]
    text = "\n".join(map(json.dumps, changed)).encode()
    if kind == "cut":
        text = text[: text.rindex(b"\n") + draw.randrange(2, len(text) - text.rindex(b"\n") - 1)]
    elif kind == "bytes":
        text = _damage_bytes(text, draw.randrange(len(text)), draw)
    # A list may stand for the objects of an image, and an empty one for none.
    return f"lines: {kind}", text, kind != "bytes" and row.get("o") != []


def damage_xml(text: str, draw: random.Random) -> Damage:
    kind = draw.choice(["wrong number", "missing tag", "cut", "bytes", "entities", "brackets"])
    number = draw.choice(list(re.finditer(r"(?<=<(?:x|y)m(?:in|ax)>)\d+", text)))
    if kind == "wrong number":
        wrong = draw.choice(["", "abc", "1e400", "nan", "inf", "-", "1" * 5000, "<a/>", "1e30"])
        changed = text[: number.start()] + wrong + text[number.end() :]
        return f"XML: {kind}", changed.encode(), True
    if kind == "missing tag":
        tag = draw.choice(["xmin", "ymax", "name", "bndbox"])
        return f"XML: {kind}", re.sub(f"</?{tag}>", "", text, count=2).encode(), True
    if kind == "cut":
        return f"XML: {kind}", text[: draw.randrange(len(text) - 1)].encode(), True
    if kind == "entities":
        inner = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
        outer = '<!ENTITY e0 SYSTEM "file:///etc/passwd">'
        return f"XML: {kind}", f"<!DOCTYPE a [{outer}{inner}]>{text}".encode(), True
    place = draw.randrange(len(text))
    if kind == "brackets":
        opened = draw.choice(["<a>", "<object>", "<"]) * draw.choice([1, 50, 20_000])
        return f"XML: {kind}", (text[:place] + opened + text[place:]).encode(), False
    return f"XML: {kind}", _damage_bytes(text.encode(), place, draw), False


def _damage_bytes(text: bytes, place: int, draw: random.Random) -> bytes:
    """Change, insert or remove some bytes, which may leave a valid file."""
    inserted = draw.choice([b"", b"\0", b'"', b"x", b"}", b",", b"\xff\xfe", b"\\", b"9" * 400])
    return text[:place] + inserted + text[place + draw.choice([0, 1, 1, 30]) :]


def outcome(source: Source, named: str) -> str:
    """What the source does; `named` is the file that it must name."""
    started = time.monotonic()
    try:
        index = source.index()
    except DataError as e:
        is_named = named in str(e).splitlines()[0] and "\n" not in str(e)
        found = "named error" if is_named else f"WRONG: an error without the file: {e}"
    except Exception as e:
        found = f"WRONG: {type(e).__name__}: {e}"
    else:
        found = _judge(index, named)
    seconds = time.monotonic() - started
    return found if seconds < MAX_SECONDS else f"WRONG: {seconds:.0f} s"


def _judge(index: Index, named: str) -> str:
    reasons = [index.faults.explain(int(row)) for row in index.faults.rows]
    if any(named not in reason or "\n" in reason for reason in reasons):
        return f"WRONG: a fault without its file: {reasons}"
    if index.warning:
        return "named error" if named in index.warning else f"WRONG: {index.warning}"
    return "named sample" if reasons else "read"


def run(damages: int, seed: int = 0) -> collections.Counter[tuple[str, str]]:
    """How often each kind of damage had each outcome."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    draw = random.Random(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as name:
        os.environ["GPUPIPE_CACHE"] = str(Path(name, "cache"))
        folder = Path(name)
        whole = document(12)
        file = write(folder, whole)
        box = ("dog", 0, [3, 4, 50, 30])
        xml = voc_xml("a", (60, 40), box, ("cat", 1, [1, 1, 60, 40]))
        root = write_voc(folder / "voc", {"a": xml, "b": xml})
        sources: list[tuple[Source, Path, Callable[[], Damage]]] = [
            (
                Coco(root=folder / "images", annotations=(file,), crowd="keep"),
                file,
                lambda: damage_json(whole, draw),
            ),
            (
                Voc(root=root, image_set="train"),
                root / "Annotations" / "a.xml",
                lambda: damage_xml(xml, draw),
            ),
        ]
        rows = [
            {"path": f"images/00{n}.jpg", "o": {"box": [[1.5, 2, 3, 4]] * n, "name": ["dog"] * n}}
            for n in (1, 2, 3)
        ]
        lists: dict[str, Any] = {
            "boxes": {"column": "o.box", "kind": "boxes", "format": "xywh"},
            "labels": {"column": "o.name", "with": "boxes"},
        }
        manifest = folder / "list.jsonl"
        manifest.touch()
        listed = FileList.model_validate({"file": manifest, "root": folder, "fields": lists})
        sources.append((listed, manifest, lambda: damage_lines(rows, draw)))
        for n in range(damages):
            source, path, make = sources[(0, 0, 1, 0, 2)[n % 5]]
            kind, damaged, is_named = make()
            path.write_bytes(damaged)
            found = outcome(source, str(path))
            if found == "read" and is_named:
                found = f"WRONG: read without a word: {damaged[:3000]!r}"
            counts[kind, found] += 1
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if grown > MAX_BYTES:
        counts["all", f"WRONG: {grown / 2**20:.0f} MiB more memory"] += 1
    return counts


if __name__ == "__main__":
    for (kind, result), count in sorted(run(int(sys.argv[1])).items()):
        print(f"{kind:24}{result:24}{count:>6,}")
