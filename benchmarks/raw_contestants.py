"""The contestants of raw.py: each returns what makes an epoch's batches of raw numbers."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np

SHAPE = (4, 256, 256)
BATCH = 128
_QUEUED = 256
PACED = "gpupipe at 700 MB/s, a busy thread"


def rows(root: Path) -> Iterable[Any]:
    return _gpupipe({"files": str(root / "rows.npy"), "rows": True})


def files(root: Path) -> Iterable[Any]:
    return _gpupipe({"files": str(root / "one" / "*.npy")})


def files_anew(root: Path) -> Iterable[Any]:
    """As of a data set of more files than stay mapped."""
    from gpupipe.engines.dali import field_readers

    field_readers._MAX_OPEN = BATCH
    return files(root)


def busy_process(root: Path) -> Iterable[Any]:
    """What a busy thread would take without the interpreter's lock: one of the cores."""
    multiprocessing.get_context("spawn").Process(target=_spin, daemon=True).start()
    return rows(root)


def _gpupipe(data: dict[str, Any]) -> Iterable[Any]:
    import gpupipe

    return gpupipe.load(
        {"data": {"source": "numpy", **data}, "pipeline": []},
        batch_size=BATCH,
        engine="dali",
        device="cpu",
        last_batch="drop",
    )


def numpy_reader(root: Path) -> Iterable[Any]:
    """DALI's own reader, which shuffles all files behind each epoch."""
    from nvidia.dali import Pipeline, fn
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    names = sorted(str(path) for path in (root / "one").iterdir())
    pipe = Pipeline(BATCH, harness.threads(), None, exec_dynamic=True, prefetch_queue_depth=2)
    with pipe:
        pipe.set_outputs(fn.readers.numpy(files=names, shuffle_after_epoch=True, name="reader"))
    return DALIGenericIterator(
        [pipe],
        ["array"],
        reader_name="reader",
        auto_reset=True,
        last_batch_policy=LastBatchPolicy.DROP,
    )


class Files:
    """A data set of .npy files."""

    def __init__(self, root: Path) -> None:
        self._paths = sorted((root / "one").iterdir())

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, i: int) -> Any:
        import torch

        return torch.from_numpy(np.load(self._paths[i]))


def data_loader(root: Path) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(
        Files(root), BATCH, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True
    )  # type: ignore[arg-type]  # it has both methods


class Queued:
    """Batches of samples that another process reads and sends, pickled."""

    def __init__(self, root: Path) -> None:
        self._count = len(list((root / "one").iterdir())) // BATCH
        context = multiprocessing.get_context("spawn")
        self._queue: Any = context.Queue(_QUEUED)
        context.Process(target=_send, args=(str(root / "one"), self._queue), daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        import torch

        for _ in range(self._count):
            yield torch.stack([torch.from_numpy(self._queue.get()) for _ in range(BATCH)])


def _send(folder: str, queue: Any) -> None:
    paths, rng = sorted(Path(folder).iterdir()), np.random.default_rng(0)
    while True:
        for n in rng.permutation(len(paths)):
            queue.put(np.load(paths[n]))


CONTESTANTS: dict[str, Callable[[Path], Iterable[Any]]] = {
    "gpupipe": rows,
    "gpupipe, a busy thread": rows,
    PACED: rows,
    "gpupipe, a busy process": busy_process,
    "gpupipe, a file a sample": files,
    "gpupipe, files mapped anew": files_anew,
    "DALI readers.numpy": numpy_reader,
    "DataLoader, 2 workers": data_loader,
    "pickle over a Queue": Queued,
}


def _spin() -> None:
    n = 0
    while True:
        n += 1
