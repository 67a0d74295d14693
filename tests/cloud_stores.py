"""Google Cloud Storage and Azure, end to end: emulators of both are listed, fetched and trained on.

It needs gcsfs, adlfs and obstore, and the emulators fake-gcs-server and Azurite (npm install
azurite), for which it is no test of the suite. Each store is read by obstore, and by fsspec alone.

Usage: python tests/cloud_stores.py [--fake-gcs-server PATH] [--azurite-blob PATH]
"""

import argparse
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

import gpupipe
from gpupipe.cache.range_reader import create_range_reader
from gpupipe.dataset.source import ignore_progress
from gpupipe.sources.helpers.dataset_catalog import make_stand_in
from helpers.cached_loading import ids, load, waited
from helpers.ports import free_port
from helpers.stored_shards import NAMES, PATTERN, write_tars

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of Azurite's account, which is public."""


@dataclass(frozen=True)
class Cloud:
    """An emulator that runs.

    Attributes:
        scheme: The scheme of its URLs.
        options: The storage_options for it.
        only_fsspec: A further option that obstore does not have.
    """

    scheme: str
    options: dict[str, Any]
    only_fsspec: dict[str, Any]


@contextmanager
def _run(port: int, *command: object) -> Iterator[None]:
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL) as process:
        try:
            waited(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
            yield
        finally:
            process.terminate()


@contextmanager
def run_google(program: Path, root: Path) -> Iterator[Cloud]:
    # Else gcsfs asks for the kind of a bucket by gRPC, which the emulator does not speak.
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    port = free_port()
    own = f"127.0.0.1:{port}"
    command = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", port]
    with _run(port, *command, "-backend", "memory", "-public-host", own, "-log-level", "error"):
        options = {"token": "anon", "endpoint_url": f"http://{own}"}
        yield Cloud("gs", options, {"project": "p", "requester_pays": False})


@contextmanager
def run_azure(program: Path, root: Path) -> Iterator[Cloud]:
    port, account = free_port(), "devstoreaccount1"
    options = ("--silent", "--disableTelemetry", "--skipApiVersionCheck")
    with _run(port, program, "--blobPort", port, "--location", root, *options):
        parts = {
            "DefaultEndpointsProtocol": "http",
            "AccountName": account,
            "AccountKey": KEY,
            "BlobEndpoint": f"http://127.0.0.1:{port}/{account}",
        }
        text = ";".join(f"{name}={value}" for name, value in parts.items())
        yield Cloud("az", {"connection_string": text}, {"max_concurrency": 1})


def check(url: str, options: dict[str, Any], tars: Path, images: list[Path], dir: Path) -> None:
    """Train on all shards, then on a store of which a shard changed and one is gone."""
    files, root = fsspec.url_to_fs(url, **options)
    files.mkdir(root.partition("/")[0])
    for name in NAMES:
        files.pipe(f"{root}/{name}", (tars / name).read_bytes())
    data = {"source": "remote", "url": url, "storage_options": options, "shards": PATTERN}
    cache = {"max_bytes": "4MB", "workers": 1, "retries": 1, "timeout": 20, "wait": 60}

    def make(name: str, epoch: str) -> dict[str, Any]:
        own = data | {"cache": cache | {"dir": str(dir / name), "epoch": epoch}}
        return {"data": own, "pipeline": ["decode", {"random_crop": {"size": 64}}]}

    began = time.monotonic()
    with load(make("whole", "full"), engine="cpu") as loader:
        seen = []
        for batch in loader:
            for id, label in zip(batch["id"].tolist(), batch["label"].tolist(), strict=True):
                assert bytes(loader.index.read(id)) == images[label].read_bytes()
                seen.append(label)
    assert sorted(seen) == list(range(60))
    print(f"  60 samples of 6 shards trained on in {time.monotonic() - began:.1f} s", flush=True)

    gpupipe.config.read(make("broken", "new")).source.index()  # lists the store
    files.pipe(f"{root}/{NAMES[1]}", (tars / NAMES[1]).read_bytes() + bytes(512))
    files.rm(f"{root}/{NAMES[2]}")
    with load(make("broken", "new"), engine="cpu", on_error="skip", max_bad=0.9) as loader:
        rest: list[int] = []
        while len(rest) < 60 - 9 - 9:
            rest += ids(loader)
        shards = sorted(NAMES)
        assert {shards[id >> 32] for id in rest} == {*NAMES} - {NAMES[1], NAMES[2]}
        assert sorted(ids(loader)) == sorted(rest)
    print("  a changed shard is broken, a deleted one left out", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fake-gcs-server", type=Path)
    parser.add_argument("--azurite-blob", type=Path)
    arguments = parser.parse_args()
    clouds = [(run_google, arguments.fake_gcs_server), (run_azure, arguments.azurite_blob)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_stand_in(root / "faces", 60, ignore_progress)
        images = sorted((root / "faces").glob("*/*.jpg"))
        tars = write_tars(root / "tars", root / "faces")
        for run, program in clouds:
            if program is None:
                continue
            with run(program, root / "emulator") as cloud:
                for more, reader in (({}, "obstore"), (cloud.only_fsspec, "fsspec")):
                    options = cloud.options | more
                    url = f"{cloud.scheme}://for-{reader}/train"
                    has_obstore = create_range_reader(url, options, 20) is not None
                    assert has_obstore == (reader == "obstore")
                    print(f"{url}:", flush=True)
                    check(url, options, tars, images, root / f"{run.__name__}-{reader}")


if __name__ == "__main__":
    main()
