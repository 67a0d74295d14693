"""What goes between a trainer and its workers."""

from __future__ import annotations

import pickle

import numpy as np
import torch

from gpupipe.engines.ray.arrays import pack
from gpupipe.engines.ray.messages import BatchAnswer, PlanTask


def test_a_task_is_its_plan_after_it_was_sent() -> None:
    ids, repeats = np.array([7, 7, 1]), np.array([0, 1, 0])
    task = pickle.loads(pickle.dumps(PlanTask("key", 3, 4, 5, ids, True, repeats)))
    plan = task.to_plan()
    assert (task.key, task.run, task.step) == ("key", 3, 4)
    assert (plan.epoch, plan.last, plan.ids.tolist()) == (5, True, [7, 7, 1])
    assert plan.repeats is not None and plan.repeats.tolist() == [0, 1, 0]


def test_the_size_of_an_answer_is_that_of_all_its_fields() -> None:
    image, mask = torch.zeros(2, 3, 4, 5, dtype=torch.uint8), torch.zeros(2, 4, 5)
    answer = BatchAnswer({"image": pack(image), "mask": pack(mask)})
    assert answer.nbytes == 2 * 3 * 4 * 5 + 4 * 2 * 4 * 5
    assert BatchAnswer().nbytes == 0
