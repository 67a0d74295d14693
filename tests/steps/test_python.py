import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe.errors import ConfigError, EngineError, StepError
from gpupipe.steps.python import Python
from helpers import user_functions
from helpers.loaders import loading
from helpers.reference import by_id

ENGINES = [
    {"engine": "cpu", "threads": 2},
    {"engine": "dataloader", "workers": 0},
    {"engine": "dali"},
]
load = loading(batch_size=2, seed=3)
SIDE = 48
pytestmark = pytest.mark.usefixtures("forked_in_module")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five images without loss. The last is dark; sizes differ."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "a").mkdir()
    random = np.random.default_rng(0)
    for n in range(5):
        levels = random.integers(0, 50 if n == 4 else 256, (SIDE + 2 * n, SIDE + n, 3), np.uint8)
        Image.fromarray(levels).save(folder / "a" / f"{n}.png")
    return folder


def step(name: str, **parameters: Any) -> dict[str, Any]:
    return {"python": {"call": f"helpers.user_functions:{name}", **parameters}}


def images(root: Path, *steps: Any, **options: Any) -> dict[int, torch.Tensor]:
    with load(root, ["decode", *steps], **options) as loader:
        return by_id(loader)


CROP = {"center_crop": {"size": 32}}


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_the_function_gets_the_image_and_may_change_it(root: Path, options: Any) -> None:
    divided = images(root, step("Divide", args={"by": 2}), CROP, **options)
    plain = images(root, CROP, **options)
    assert all(torch.equal(divided[n], plain[n] // 2) for n in plain)
    stamped = images(root, {"python": {"call": user_functions.stamp}}, CROP, **options)
    assert all((stamped[n] <= plain[n]).all() and stamped[n].float().mean() > 0 for n in plain)


@pytest.mark.parametrize("name", ["stamp", "speckle"])
def test_draws_are_the_same_on_every_engine(root: Path, name: str) -> None:
    first, *others = (images(root, step(name), CROP, **options) for options in ENGINES)
    for other in others:
        assert all(torch.equal(first[n], other[n]) for n in first)
    again = images(root, step(name), CROP, engine="cpu", seed=4)
    assert not any(torch.equal(first[n], again[n]) for n in first)


def test_two_steps_and_two_epochs_draw_unlike_numbers(root: Path) -> None:
    steps = ["decode", step("speckle"), CROP, step("speckle")]
    with load(root, steps, engine="cpu") as loader:
        first, second = by_id(loader), by_id(loader)
    once = images(root, step("speckle"), CROP, engine="cpu")
    assert not any(torch.equal(first[n], second[n]) for n in first)
    assert not any(torch.equal(first[n], once[n]) for n in first)


@pytest.mark.parametrize("options", ENGINES[:2], ids=str)
def test_what_it_returns_is_learned(root: Path, options: Any) -> None:
    with load(root, ["decode", step("halve"), {"center_crop": {"size": 20}}], **options) as loader:
        (entry,) = (e for e in loader.config.pipeline.entries if e.name == "python")
        assert str(entry.output_spec) == "(1, ?, ?) float32"
        made = by_id(loader)
    assert made[0].shape == (1, 20, 20)
    assert 0 < made[0].max() <= 1


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_a_fixed_size_is_learned_so_that_batches_need_no_resize(root: Path, options: Any) -> None:
    made = images(root, step("trim"), **options)
    plain = images(root, {"center_crop": {"size": [32, 32]}}, **options)
    assert made[0].shape == plain[0].shape
    whole = np.asarray(Image.open(root / "a" / "0.png"))
    assert np.array_equal(made[0].permute(1, 2, 0).numpy(), whole[:32, :32])


def test_dali_needs_the_size(root: Path) -> None:
    with pytest.raises(EngineError, match="size of what its function returns is not known"):
        images(root, step("halve"), CROP, engine="dali")


@pytest.mark.parametrize("options", ENGINES, ids=str)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_exception_names_function_line_and_sample(
    root: Path, options: Any, on_error: str
) -> None:
    with pytest.raises(StepError, match="it is dark") as caught:
        images(root, step("refuse_dark"), CROP, on_error=on_error, **options)
    message = str(caught.value)
    for part in ("pipeline.1", "refuse_dark (", "user_functions.py:", "LookupError", "4.png"):
        assert part in message
    assert "raise LookupError" in caught.value.traceback


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_a_function_that_changes_its_size_from_sample_to_sample(root: Path, options: Any) -> None:
    with pytest.raises(StepError, match=r"cut_dark .* returned \(3, 55, 52\).*size: any.*4\.png"):
        images(root, step("cut_dark"), CROP, **options)
    if options["engine"] != "dali":
        declared = step("cut_dark", returns={"size": "any"})
        assert len(images(root, declared, CROP, **options)) == 5


@pytest.mark.parametrize(
    ("name", "generator"),
    [
        ("draws_of_torch", "torch's global generator"),
        ("draws_of_numpy", "NumPy's global generator"),
        ("draws_of_python", "module random"),
        ("draws_of_its_own", "another generator"),
    ],
)
@pytest.mark.parametrize("returns", [None, {}], ids=["learned", "declared"])
def test_draws_from_elsewhere_are_refused(
    root: Path, name: str, generator: str, returns: Any
) -> None:
    with pytest.raises(StepError, match=f"{name} .* draws from .*{generator}.*'rng'"):
        images(root, step(name, returns=returns), CROP, engine="cpu")


def test_load_checks_a_declared_function_on_the_first_sample(root: Path) -> None:
    with pytest.raises(StepError, match=r"to_array .* returned a ndarray.*torch.from_numpy"):
        load(root, ["decode", step("to_array", returns={}), CROP], engine="cpu")


@pytest.mark.parametrize(
    ("name", "reason", "options"),
    [
        *[
            ("refuse_dark", "raised LookupError: it is dark at .*user_functions", e)
            for e in ENGINES
        ],
        ("hang_if_dark", "not returned after 2 s at .*user_functions", ENGINES[0]),
        ("hang_if_dark", "TimeoutError: .*2 s", {"engine": "dataloader", "workers": 1}),
        ("leave_if_dark", "raised SystemExit", ENGINES[0]),
    ],
    ids=str,
)
def test_what_fails_in_a_worker_names_function_and_sample(
    root: Path, name: str, reason: str, options: Any
) -> None:
    with pytest.raises(StepError, match=reason) as caught:
        images(root, step(name, workers=1, timeout=2), CROP, **options)
    for part in ("pipeline.1", f"{name} (", "4.png"):
        assert part in str(caught.value)


def test_few_calls_wait_for_the_timeout(tmp_path: Path) -> None:
    """Of 12 dark images, those that three threads have begun may hang, and no later ones. Each may
    be called once more, for the line it hangs in.
    """
    folder = tmp_path / "a"
    folder.mkdir()
    for n in range(13):
        Image.new("RGB", (40, 40), (0, 0, 0) if n else (200, 200, 200)).save(folder / f"{n:02}.jpg")
    log = tmp_path / "log"
    hang = step("note_and_hang_if_dark", args={"log": str(log)}, workers=1, timeout=1, returns={})
    with pytest.raises(StepError, match=r"not returned after 1 s at .*user_functions.*\.jpg"):
        images(tmp_path, hang, batch_size=6, engine="cpu", threads=2)
    assert 1 <= len(log.read_text().splitlines()) < 12


def test_an_exception_that_is_no_exception_ends_the_epoch(root: Path) -> None:
    """A BaseException of a function, in a thread of the engine."""
    caught: list[BaseException] = []

    def run() -> None:
        try:
            images(root, step("cancel_if_dark", returns={}), CROP, **ENGINES[0])
        except BaseException as e:
            caught.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    (error,) = caught
    assert isinstance(error, EngineError)
    for part in ("engine: cpu", "CancelledError: it is dark", "user_functions.py:"):
        assert part in str(error)
    assert ".png" not in str(error)


@pytest.mark.parametrize("options", ENGINES[:2], ids=str)
def test_a_sample_refused_in_a_worker_is_left_out(root: Path, options: Any) -> None:
    left = images(
        root, step("skip_if_dark", workers=1), CROP, on_error="skip", max_bad=1, **options
    )
    assert left.keys() == {0, 1, 2, 3}


def test_the_loader_ends_the_workers(root: Path) -> None:
    nested = {"random_apply": {"p": 1.0, "transforms": [step("name_process", workers=1)]}}
    with load(root, ["decode", step("name_process", workers=1), nested, CROP]) as loader:
        processes = {int(n) for image in by_id(loader).values() for n in image.unique()}
        assert os.getpid() not in processes
    for _ in range(100):
        if not any(Path(f"/proc/{process}").exists() for process in processes):
            return
        time.sleep(0.1)
    raise AssertionError("a process is left")


def test_workers_and_timeout_change_no_fingerprint(root: Path) -> None:
    found = set()
    for parameters in ({}, {"workers": 2}, {"timeout": 5}):
        with load(root, ["decode", step("stamp", **parameters), CROP]) as loader:
            found.add(loader.config.pipeline.fingerprint)
    assert len(found) == 1


@pytest.mark.parametrize(
    "parameters", [{"workers": -1}, {"timeout": 0}, {"timeout": True}, {"workers": 1.5}]
)
def test_wrong_workers(root: Path, parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(parameters))):
        images(root, step("stamp", **parameters), CROP)


def test_a_lambda_with_workers(root: Path) -> None:
    with pytest.raises((StepError, ConfigError), match=r"cannot be sent .*workers: 0"):
        images(root, {"python": {"call": lambda image: image, "workers": 1}}, CROP)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("no_such_module:stamp", "no_such_module cannot be imported"),
        ("helpers.user_functions:stam", "helpers.user_functions has no 'stam'"),
        ("helpers.user_functions", "should be 'module:function'"),
        ("helpers.user_functions:random", "cannot be called|is a module"),
        ("helpers.user_functions:Divide", "cannot be constructed: TypeError"),
    ],
)
def test_wrong_calls(root: Path, call: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        images(root, {"python": {"call": call}}, CROP)


def test_wrong_arguments(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"stamp .* cannot be called.*'strenght'"):
        images(root, step("stamp", args={"strenght": 1}), CROP)


def test_a_module_beside_the_file(root: Path, tmp_path: Path) -> None:
    (tmp_path / "steps_beside_it.py").write_text("def dim(image, by):\n    return image // by\n")
    config = tmp_path / "train.yaml"
    config.write_text(
        f"data: {{source: folder, root: '{root}'}}\n"
        "pipeline:\n"
        "  - decode\n"
        "  - python: {call: 'steps_beside_it:dim', args: {by: 4}}\n"
        "  - center_crop: {size: 32}\n"
    )
    with gpupipe.load(config, engine="cpu", device="cpu", ids=True) as loader:
        dimmed = by_id(loader)
    plain = images(root, CROP)
    assert all(torch.equal(dimmed[n], plain[n] // 4) for n in plain)
    with pytest.raises(ConfigError, match=r"train\.yaml:4:5.*has no 'dimm'"):
        gpupipe.load(config, **{"pipeline.1.python.call": "steps_beside_it:dimm"})


def test_functions_and_modules_stand_in_the_list(root: Path) -> None:
    module = torch.nn.Identity()
    in_list = images(root, user_functions.stamp, module, CROP, engine="cpu")
    written = images(root, step("stamp"), CROP, engine="cpu")
    assert all(torch.equal(in_list[n], written[n]) for n in written)
    with load(root, ["decode", user_functions.stamp, CROP]) as loader:
        of_function = loader.config.pipeline.fingerprint
    with load(root, ["decode", step("stamp"), CROP]) as loader:
        assert loader.config.pipeline.fingerprint == of_function
    with load(root, ["decode", step("stamp", args={"strength": 0.1}), CROP]) as loader:
        assert loader.config.pipeline.fingerprint != of_function


def test_a_class_is_constructed_once(root: Path) -> None:
    before = user_functions.Divide.constructed
    images(root, step("Divide", args={"by": 7}), CROP, step("Divide", args={"by": 7}))
    assert user_functions.Divide.constructed == before + 1


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_in_a_container(root: Path, options: Any) -> None:
    nested = {"random_apply": {"p": 0.5, "transforms": [step("Divide", args={"by": 2})]}}
    some, plain = images(root, nested, CROP, **options), images(root, CROP, **options)
    halved = {n for n in plain if torch.equal(some[n], plain[n] // 2)}
    assert {n for n in plain if torch.equal(some[n], plain[n])} == plain.keys() - halved
    assert 0 < len(halved) < len(plain)


def test_boxes_cannot_follow() -> None:
    refusal = Python(call="helpers.user_functions:stamp").explain_refusal()
    assert "boxes" in refusal
