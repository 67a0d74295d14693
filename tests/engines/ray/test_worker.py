"""The worker's side without Ray: the batches of plans, and the answers to the trainer, with
tensors as arrays and back.
"""

import pickle
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.engines.ray.engine import split_job
from gpupipe.engines.ray.worker import BatchAnswer, BatchMaker, pack, unpack
from gpupipe.errors import SampleError
from helpers.batch_makers import broken, make_batch, maker, plan


def test_makes_the_batches_of_a_loader(faces: Path) -> None:
    with gpupipe.load(
        {"data": {"source": "folder", "root": faces}, "pipeline": ["decode"]},
        engine="cpu", device="cpu", batch_size=8, ids=True,
    ) as loader:  # fmt: skip
        expected = next(iter(loader))
    with maker(faces, batch_size=8) as (ours, _):
        made = make_batch(ours, plan(*expected["id"].tolist()))
    assert made.keys() == expected.keys()
    for name, tensor in made.items():
        assert torch.equal(tensor, expected[name])


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_dataloader_inside_a_worker(faces: Path, cpus: int) -> None:
    with maker(faces, ray={"cpus": cpus}) as (ours, job):
        expected = make_batch(ours, plan(3, 1, 2))
    with closing(BatchMaker(split_job(job)[0], "dataloader")) as ours:
        assert ours.engine.traits.parallelism == (0 if cpus == 1 else cpus)
        made = make_batch(ours, plan(3, 1, 2))
    assert made["id"].tolist() == [3, 1, 2]
    assert (made["image"].int() - expected["image"].int()).abs().max() <= 1


def test_a_worker_has_no_files_that_it_would_leave_when_it_is_killed(
    tmp_path: Path, faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = broken(tmp_path, faces)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with maker(root, on_error="skip", max_bad=0.5) as (ours, job):
        assert len(make_batch(ours, plan(*range(len(job.index))))["id"]) == len(job.index) - 1
        assert not list((tmp_path / "tmp").iterdir())


def test_skipped_samples_are_left_out_with_their_reason(tmp_path: Path, faces: Path) -> None:
    with maker(broken(tmp_path, faces), on_error="skip") as (ours, _):
        for ids, left in (((1, 2, 3), [1, 3]), ((2, 4), [4]), ((2,), [])):
            made = ours.submit(plan(*ids)).result()
            assert made is not None and made[0].ids.tolist() == left
        assert list(ours.engine.quarantine.reasons) == [2]
        assert "cut off" in ours.engine.quarantine.reasons[2]


def test_an_answer_has_the_fields_of_the_pipeline(faces: Path) -> None:
    with maker(faces) as (ours, _):
        answer = ours.make(plan(5, 2))
        expected = make_batch(ours, plan(5, 2))
    assert answer is not None and answer.kept is None and answer.error is None
    assert list(answer.fields) == ["image"], "the trainer knows labels and ids"
    assert torch.equal(unpack(answer.fields["image"]), expected["image"])


def test_an_answer_says_which_samples_were_skipped_and_why(tmp_path: Path, faces: Path) -> None:
    with maker(broken(tmp_path, faces), on_error="skip") as (ours, _):
        some, none = ours.make(plan(4, 2, 1)), ours.make(plan(2))
    assert some is not None and some.kept is not None and some.kept.tolist() == [0, 2]
    assert len(unpack(some.fields["image"])) == 2
    assert list(some.skipped) == [2] and "cut off" in some.skipped[2]
    assert none is not None and none.kept is not None and not len(none.kept)
    assert none.fields == {}


def test_many_plans_at_once_are_answered_in_any_order_that_they_come(faces: Path) -> None:
    with maker(faces) as (ours, _):
        results = [ours.submit(plan(n, n + 1), (0, n)) for n in range(20)]
        for n, result in enumerate(results):
            made = result.result()
            assert made is not None and made[0].ids.tolist() == [n, n + 1]


def test_a_sample_that_fails_costs_only_its_own_plan(tmp_path: Path, faces: Path) -> None:
    root = broken(tmp_path, faces)
    with maker(root) as (ours, job):
        results = [ours.submit(plan(n), (0, n)) for n in range(6)]
        for n, result in enumerate(results):
            if n == 2:
                with pytest.raises(SampleError) as error:
                    result.result()
                assert error.value.path == job.index.location(2)
            else:
                made = result.result()
                assert made is not None and made[1]["id"].tolist() == [n]


def test_plans_of_an_ended_iteration_are_discarded(faces: Path) -> None:
    with maker(faces) as (ours, _):
        ours.discard_before(1)
        assert ours.make(plan(0), (0, 0)) is None
        assert ours.make(plan(0), (1, 0)) is not None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2)])
def test_values_and_strides_survive(dtype: torch.dtype, axes: tuple[int, ...]) -> None:
    tensor = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).to(dtype).permute(axes)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(pack(tensor), protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 1, "the pixels are out of band"
    again = unpack(pickle.loads(data, buffers=buffers))
    assert again.dtype == tensor.dtype and again.stride() == tensor.stride()
    assert torch.equal(again, tensor)


def test_a_read_only_array_is_wrapped_without_a_copy_and_can_be_written() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    packed = pack(torch.from_numpy(array))
    packed.array.flags.writeable = False
    tensor = unpack(packed)
    tensor[0, 0] = 7
    assert array[0, 0] == 7


def test_empty_tensors() -> None:
    empty = pack(torch.zeros(0, 3))
    empty.array.flags.writeable = False
    assert unpack(empty).shape == (0, 3)


def test_the_size_of_an_answer_is_that_of_all_its_fields() -> None:
    image, mask = torch.zeros(2, 3, 4, 5, dtype=torch.uint8), torch.zeros(2, 4, 5)
    answer = BatchAnswer({"image": pack(image), "mask": pack(mask)})
    assert answer.nbytes == 2 * 3 * 4 * 5 + 4 * 2 * 4 * 5
    assert BatchAnswer().nbytes == 0
