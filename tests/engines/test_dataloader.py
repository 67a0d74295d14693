"""The DataLoader engine: the same samples, order and draws as DALI's, whatever its workers are, and
plain words where one dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path
from threading import Timer
from types import ModuleType

import pytest
import torch
from loaders import loading
from plugin import install

import gpupipe
from gpupipe import config as configs
from gpupipe.bench import compare, parity
from gpupipe.bench.measure import describe_loader

STEPS = [
    {"decode": {"mode": "rgb"}},
    {"random_affine": {"degrees": 20, "translate": [0.1, 0.1], "interpolation": "bilinear"}},
    {"random_crop": {"size": 160}},
    "random_horizontal_flip",
    {"to_dtype": {"dtype": "float32", "scale": True}},
]
CORES = len(os.sched_getaffinity(0))


load = loading(STEPS, engine="dataloader", workers=1, batch_size=16)


def same(one: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]]) -> bool:
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
        for a, b in zip(one, other, strict=True)
    )


def left_behind() -> set[str]:
    """Worker processes, and files of shared memory that torch made."""
    return {str(c.pid) for c in active_children()} | {
        name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "pymp"))
    }


@pytest.fixture(scope="module")
def epochs(faces: Path) -> list[list[dict[str, torch.Tensor]]]:
    """Two epochs, made in this process."""
    with load(faces, workers=0) as loader:
        return [list(loader) for _ in range(2)]


def test_samples_order_and_draws_are_dalis(
    faces: Path, epochs: list[list[dict[str, torch.Tensor]]]
) -> None:
    with load(faces, engine="dali") as dali:
        for epoch in epochs:
            for mine, other in zip(epoch, dali, strict=True):
                assert torch.equal(mine["id"], other["id"])
                assert torch.equal(mine["label"], other["label"])
                assert mine["image"].shape == other["image"].shape
                assert mine["image"].dtype == other["image"].dtype
                assert float((mine["image"] - other["image"]).abs().mean()) < 0.3 / 255


@pytest.mark.filterwarnings("ignore:loader.workers")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_delivers_the_same(
    faces: Path, epochs: list[list[dict[str, torch.Tensor]]], workers: int
) -> None:
    with load(faces, workers=workers) as loader:
        assert [same(list(loader), epoch) for epoch in epochs] == [True, True]
        assert loader.engine.parallelism_with_unit == f"{workers} worker{'s' * (workers > 1)}"


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_any_start_method_delivers_the_same_and_leaves_nothing_behind(
    faces: Path, epochs: list[list[dict[str, torch.Tensor]]], method: str
) -> None:
    before = left_behind()
    with load(faces, multiprocessing_context=method, persistent_workers=method != "fork") as loader:
        assert [same(list(loader), epoch) for epoch in epochs] == [True, True]
        assert left_behind() > before
    deadline = time.monotonic() + 10
    while left_behind() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_behind() <= before


@pytest.mark.parametrize("workers", [0, 1])
def test_breaking_off_and_setting_the_epoch(
    faces: Path, epochs: list[list[dict[str, torch.Tensor]]], workers: int
) -> None:
    with load(faces, workers=workers) as loader:
        assert same([next(iter(loader))], epochs[0][:1])
        assert same(list(loader), epochs[1])
        loader.sampler.set_epoch(0)
        assert same(list(loader), epochs[0])


def test_a_state_goes_on_in_the_other_engine(
    faces: Path, epochs: list[list[dict[str, torch.Tensor]]]
) -> None:
    with load(faces, engine="dali") as dali:
        iterator = iter(dali)
        next(iterator)
        state = dali.state_dict()
    with load(faces) as loader:
        loader.load_state_dict(state)
        assert same(list(loader), epochs[0][1:])


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


# --- samples that fail


BAD = {
    "missing": (None, "no such file or directory"),
    "empty": (b"", "the file is empty"),
    "text": (b"hello world\n" * 50, "not an image in a known format"),
    "cut off": (b"\xff\xd8\xff\xe0" + bytes(100), "was cut off|cannot be decoded"),
}


@pytest.fixture
def sick(faces: Path, tmp_path: Path) -> list[Path]:
    """Good images, and one of each kind of bad ones."""
    files = [tmp_path / "a" / f"{n:02}.jpg" for n in range(12)]
    files[0].parent.mkdir()
    for file, face in zip(files, sorted(faces.glob("*/*.jpg")), strict=False):
        file.write_bytes(face.read_bytes())
    return files


def break_(file: Path, kind: str) -> None:
    file.unlink()
    if (content := BAD[kind][0]) is not None:
        file.write_bytes(content)


@pytest.mark.parametrize("decoder", ["torchvision", "pil"])
@pytest.mark.parametrize("kind", BAD)
def test_raise_names_the_sample_and_the_reason(sick: list[Path], kind: str, decoder: str) -> None:
    with load(sick[0].parents[1], batch_size=4, shuffle=False, decoder=decoder) as loader:
        break_(sick[5], kind)
        iterator = iter(loader)
        assert next(iterator)["id"].tolist() == [0, 1, 2, 3]
        with pytest.raises(gpupipe.SampleError, match=BAD[kind][1]) as caught:
            next(iterator)
        assert caught.value.path == str(sick[5])


def test_skip_leaves_out_the_bad_alone_and_lists_them_once(
    sick: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "bad.jsonl"
    with load(
        sick[0].parents[1],
        batch_size=4,
        shuffle=False,
        on_error="skip",
        max_bad=0.5,
        quarantine=file,
    ) as loader:
        for place, kind in zip((0, 4, 5, 11), BAD, strict=True):
            break_(sick[place], kind)
        for _ in range(2):
            assert [b["id"].tolist() for b in loader] == [[1, 2, 3], [6, 7], [8, 9, 10]]
        assert loader.engine.skipped == len(BAD) == len(file.read_text().splitlines())


def test_a_batch_of_bad_samples_alone_is_left_out(sick: list[Path]) -> None:
    with load(
        sick[0].parents[1], batch_size=4, shuffle=False, on_error="skip", max_bad=0.5
    ) as loader:
        for file in sick[4:8]:
            break_(file, "text")
        for _ in range(2):
            assert [b["id"].tolist() for b in loader] == [[0, 1, 2, 3], [8, 9, 10, 11]]


def test_images_of_different_sizes_are_named(photos: Path) -> None:
    with (
        load(photos, ["decode"], batch_size=47) as loader,
        pytest.raises(gpupipe.ShapeError) as error,
    ):
        list(loader)
    assert str(error.value).count(".jpg is ") == 2


# --- forms of a batch


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_dtype_and_memory_format(faces: Path, dtype: str, memory_format: str) -> None:
    steps = STEPS[:3] if dtype == "uint8" else STEPS
    with (
        load(faces, steps, dtype=dtype, memory_format=memory_format, workers=0) as mine,
        load(faces, steps, dtype=dtype, engine="dali") as dali,
    ):
        image, other = next(iter(mine))["image"], next(iter(dali))["image"]
    assert image.dtype == getattr(torch, dtype) == other.dtype
    assert image.shape == other.shape == (16, 3, 160, 160)
    assert image.is_contiguous(
        memory_format={"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}[
            memory_format
        ]
    )
    scale = 1 if dtype == "uint8" else 255
    assert float((image.double() - other.double()).abs().mean()) * scale < 0.6


def test_pillow_decodes_nearly_the_same(faces: Path) -> None:
    with load(faces, ["decode"], decoder="pil") as pil, load(faces, ["decode"]) as other:
        for a, b in zip(pil, other, strict=True):
            assert int((a["image"].int() - b["image"].int()).abs().max()) <= 1


# --- steps and machines that it cannot run on


DALI_ALONE = """
from gpupipe.pipeline.step import Step, decoded


class Posterize(Step):
    def spec(self, given):
        return decoded(given)

    def lower(self, image, p):
        image.apply("posterize", lambda pixels: pixels & 0xF0)
"""


def test_a_step_that_only_dali_has_is_named(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, "posterize", DALI_ALONE, posterize="Posterize"))
    with pytest.raises(
        gpupipe.EngineError,
        match=r"Posterize has no torch lowering; it cannot run on the DataLoader engine.*engine: "
        r"dali",
    ):
        load(faces, ["decode", "posterize"])
    checked = configs.read(
        {
            "data": {"source": "folder", "root": faces},
            "pipeline": ["decode", "posterize", "random_horizontal_flip"],
        }
    )
    sides, notes = compare.sides(checked, [1], 0, ["dali", "dataloader"])
    assert [side.name for side in sides] == ["DALI on CPU"]
    assert any(
        "no lowering for the DataLoader: posterize" in note and "left out" in note for note in notes
    )
    assert [a.step for a in parity.measure(checked, checked.source.index(), ["cpu"], 2)] == [
        "decode"
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said(faces: Path) -> None:
    with pytest.raises(gpupipe.DeviceError, match=r"loader\.device=gpu asks for a GPU"):
        load(faces, device="gpu")


def python(code: str, folder: Path) -> str:
    """What a program says that runs in `folder`, which is also the first place where it finds
    modules.
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_dali_the_dataloader_runs_and_says_so(faces: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['nvidia.dali'] = None\n")
    code = f"""
import sys
from click.testing import CliRunner
from gpupipe.cli.app import main
import pathlib
config = "data: {{source: folder, root: {faces}}}\\npipeline: affine\\n"
pathlib.Path("config.yaml").write_text(config)
run = ["run", "config.yaml", "batch_size=16", "workers=1", "--repeats", "1"]
for command in (run, ["check", "config.yaml"]):
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    print(done.output)
print(CliRunner().invoke(main, ["run", "config.yaml", "engine=dali"]).output)
"""
    said = python(code, tmp_path)
    assert "dataloader (DALI is not installed) on cpu, 1 worker, batches of 16" in said
    assert "random_affine.torch" in said
    assert "NVIDIA DALI is not installed" in said


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
        assert loader.engine.parallelism_with_unit == "1,024 workers"
        assert describe_loader(loader)["parallelism"] == 1024


# --- threads of torch's operators


COUNTS_THREADS = """
import torch
from gpupipe.pipeline.step import Step, decoded


class Threaded(Step):
    def spec(self, given):
        return decoded(given)

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


def test_the_trainers_threads_come_back_after_an_error(sick: list[Path]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with load(sick[0].parents[1], batch_size=4, workers=0) as loader:
            break_(sick[5], "text")
            with pytest.raises(gpupipe.SampleError):
                list(loader)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# --- scripts without a main guard

SCRIPT = """
import gpupipe

{guard}
    options = dict(engine="dataloader", device="cpu", workers=2, batch_size=16)
    with gpupipe.load({config!r}, multiprocessing_context={method!r}, **options) as loader:
        print(sum(len(batch["label"]) for batch in loader))
"""


@pytest.mark.filterwarnings("ignore:loader.workers")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_without_a_main_guard_is_told_the_lines_to_write(
    faces: Path, tmp_path: Path, method: str
) -> None:
    config = {"data": {"source": "folder", "root": str(faces)}, "pipeline": ["decode"]}
    for guard, name in (("if True:", "unguarded"), ('if __name__ == "__main__":', "guarded")):
        (tmp_path / f"{name}.py").write_text(
            SCRIPT.format(guard=guard, config=config, method=method)
        )
    command = [sys.executable, "-W", "ignore", "unguarded.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 1
    last = done.stderr[done.stderr.rindex("EngineError") :]
    assert f"loader.multiprocessing_context={method}" in last
    assert 'if __name__ == "__main__":\n        with gpupipe.load(...) as loader:' in last
    assert "memory" not in last
    done = subprocess.run(
        [*command[:-1], "guarded.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.stdout == "60\n", done.stderr
