"""The worker processes of the DataLoader engine: how many, how they start, how they end."""

import os
import signal
import subprocess
import sys
from multiprocessing import active_children
from pathlib import Path
from threading import Timer
from types import ModuleType

import pytest
import torch

import gpupipe
from gpupipe.bench.measure import describe_loader
from helpers.dataloader_engine import CORES, load, python
from helpers.full_product import IS_FULL
from helpers.plugin import install


def test_a_worker_that_is_killed_is_one_clear_error(faces: Path) -> None:
    """Killed while its batch is waited for: torch tells of it by a signal, and so wherever the main
    thread is.
    """
    with load(faces, batch_size=2, workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        first, _ = active_children()
        os.kill(first.pid or 0, signal.SIGSTOP)
        killing = Timer(1.0, os.kill, (first.pid, signal.SIGKILL))
        killing.start()
        with pytest.raises(gpupipe.EngineError, match=r"worker \(pid.*fewer loader\.workers"):
            list(iterator)
        killing.join()
        assert not active_children()


def test_more_workers_than_cores_is_said(faces: Path) -> None:
    with pytest.warns(
        UserWarning, match=f"loader.workers={CORES + 1}, but this process may use {CORES} core"
    ):
        load(faces, workers=CORES + 1).close()


def test_workers_forked_beside_dali_do_not_wait_for_its_threads(
    faces: Path, epochs: list[list[dict[str, torch.Tensor]]]
) -> None:
    """Pipelines of which one runs, one is garbage and one is closed: a worker that collected them
    would hang in DALI's destructor.
    """
    code = f"""
import gc
import gpupipe
from torch.utils.data import DataLoader, Dataset

class Collects(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        gc.collect()
        return i

gc.disable()
config = {{"data": {{"source": "folder", "root": {str(faces)!r}}}, "pipeline": ["decode"]}}
options = dict(batch_size=16, device="cpu", engine="dali")
dropped, closed, running = (gpupipe.load(config, **options) for _ in range(3))
streams = [iter(loader) for loader in (dropped, closed, running)]
for stream in streams:
    next(stream)
closed.close()
dropped.itself = dropped
del dropped, closed, streams[:2]
print(sum(DataLoader(Collects(), num_workers=2)).item())
with gpupipe.load(config, batch_size=16, engine="dataloader", workers=2, device="cpu") as loader:
    print(sum(len(b["label"]) for b in loader))
print(len(list(streams[0])))
"""
    assert python(code, faces).split() == [
        "6",
        str(sum(len(b["id"]) for b in epochs[0])),
        str(len(epochs[0]) - 1),
    ]


@pytest.mark.filterwarnings("ignore:loader.workers")
def test_a_thousand_workers_are_a_number(faces: Path) -> None:
    with load(faces, workers=1024) as loader:
        assert loader.engine.traits.parallelism_with_unit == "1,024 workers"
        assert describe_loader(loader)["parallelism"] == 1024


COUNTS_THREADS = """
import torch
from gpupipe.pipeline.spec_checks import check_decoded
from gpupipe.pipeline.step import Step


class Threaded(Step):
    def infer_spec(self, given):
        return check_decoded(given)

    def torch(self, image, p):
        import threads_seen
        threads_seen.seen.append(torch.get_num_threads())
        return image
"""


def test_without_workers_one_thread_loads_and_the_trainer_keeps_its_own(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, "threaded", COUNTS_THREADS, threaded="Threaded"))
    seen = ModuleType("threads_seen")
    seen.seen = []  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "threads_seen", seen)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with load(faces, ["decode", "threaded"], workers=0) as loader:
            for number, _ in enumerate(loader):
                assert torch.get_num_threads() == 3 + number, "what the trainer set last"
                torch.set_num_threads(4 + number)
    finally:
        torch.set_num_threads(before)
    assert seen.seen == [1] * 60


# --- scripts without a main guard

SCRIPT = """
import gpupipe

{guard}
    options = dict(engine="dataloader", device="cpu", workers=1, batch_size=16)
    with gpupipe.load({config!r}, multiprocessing_context={method!r}, **options) as loader:
        print(sum(len(batch["label"]) for batch in loader))
"""


@pytest.mark.filterwarnings("ignore:loader.workers")
@pytest.mark.parametrize("method", ["spawn", "forkserver"] if IS_FULL else ["spawn"])
def test_a_script_without_a_main_guard_is_told_the_lines_to_write(
    faces: Path, tmp_path: Path, method: str
) -> None:
    config = {"data": {"source": "folder", "root": str(faces)}, "pipeline": ["decode"]}
    for guard, name in (("if True:", "unguarded"), ('if __name__ == "__main__":', "guarded")):
        (tmp_path / f"{name}.py").write_text(
            SCRIPT.format(guard=guard, config=config, method=method)
        )

    def run_script(name: str) -> subprocess.CompletedProcess[str]:
        """In a new Python: a worker of a fork of ours would not start for another reason."""
        return subprocess.run(
            [sys.executable, "-W", "ignore", f"{name}.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )

    done = run_script("unguarded")
    assert done.returncode == 1
    last = done.stderr[done.stderr.rindex("EngineError") :]
    assert f"loader.multiprocessing_context={method}" in last
    assert 'if __name__ == "__main__":\n        with gpupipe.load(...) as loader:' in last
    assert "memory" not in last
    if IS_FULL:
        done = run_script("guarded")
        assert done.stdout == "60\n", done.stderr
