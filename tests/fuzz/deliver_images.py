"""Two epochs over a folder of images on one engine, in a process that a file may end: a part of
image_runs.py.

# OPTIONS: JSON, of gpupipe.load(); OUT: a folder
python tests/fuzz/deliver_images.py ROOT OPTIONS OUT
"""

import hashlib
import json
import sys
from pathlib import Path

import gpupipe

EPOCHS = 2


def main(root: str, options: str, out: Path) -> None:
    """Write OUT/epochs.json: names and hashes of what was delivered, what is listed as bad, and the
    peak memory; OUT/pixels: of the first epoch.
    """
    how = json.loads(options)
    data = {"source": "folder", "root": root, "max_pixels": how.pop("max_pixels")}
    config = {"data": data, "pipeline": ["decode", how.pop("step")]}
    quarantine = out / "bad.jsonl"
    epochs: list[list[tuple[str, str]]] = []
    with (
        gpupipe.load(
            config,
            device="cpu",
            on_error="skip",
            max_bad=0.99,
            ids=True,
            quarantine=quarantine,
            **how,
        ) as loader,
        (out / "pixels").open("wb") as pixels,
    ):
        for _ in range(EPOCHS):
            epochs.append([])
            for batch in loader:
                for id, image in zip(batch["id"].tolist(), batch["image"], strict=True):
                    content = image.contiguous().numpy().tobytes()
                    epochs[-1].append(
                        (Path(loader.index.location(id)).name, hashlib.sha256(content).hexdigest())
                    )
                    if len(epochs) == 1:
                        pixels.write(content)
    lines = quarantine.read_text().splitlines() if quarantine.exists() else []
    # not ru_maxrss, which counts what the parent had when it started this process
    memory = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
    bad = {Path(record["path"]).name: record["reason"] for record in map(json.loads, lines)}
    (out / "epochs.json").write_text(
        json.dumps(
            {"epochs": epochs, "bad": bad, "times_listed": len(lines), "peak_memory_mib": memory}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
