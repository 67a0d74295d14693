"""BatchStage: the checked steps of `batch:` in a config, in order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch_stage.batch_step import BatchStep
from gpupipe.batch_stage.mixing import find_shift
from gpupipe.pipeline.entry import BaseEntry
from gpupipe.pipeline.schedules import Phased
from gpupipe.sampling import draws


@dataclass(frozen=True)
class BatchEntry(BaseEntry[BatchStep]):
    """One step at its position in the batch stage; see BaseEntry.

    Attributes:
        layouts: The layout of each field that the step works on, by name, such as "CHW".
    """

    layouts: dict[str, str]

    def parameters(self, seed: int, epoch: int, ids: NDArray[np.int64]) -> dict[str, Any]:
        """Draw the step's parameters for one batch.

        They are hashes of all arguments, so they depend on which samples share the batch. "shift"
        follows from the ids alone: see `find_shift`.

        Args:
            seed: The loader's seed.
            epoch: The epoch, from 0.
            ids: The rows of the batch's samples in the index, int64 (B,), in their order.

        Raises:
            StepError: If the step's `sample` raises, or returns arrays of another length.
        """
        stream = draws.stream(f"batch: {self.key}")
        uniform = draws.uniform(seed, epoch, draws.hash_ids(ids), stream, self.step.num_uniforms)
        sampled = self.sample(uniform, "one batch")
        return {"shift": find_shift(ids)} | {name: v[0] for name, v in sampled.items()}


@dataclass(frozen=True)
class BatchStage(Phased):
    """The checked steps of the batch stage, in order. Without steps it leaves batches alone.

    Attributes:
        entries: The steps; those of epoch 0, if numbers of them have schedules.
        main: The fields that a step works on unless it has `on:`.
        later: The stage from an epoch on in which numbers change, by that epoch, in order. Empty
            if there are no schedules.
    """

    entries: tuple[BatchEntry, ...] = ()
    main: tuple[str, ...] = ()
    later: Mapping[int, BatchStage] = field(default_factory=dict)

    @property
    def num_classes(self) -> int | None:
        """The number of classes that the steps were given; None if it is that of the data."""
        return next((n for e in self.entries for n in e.step.list_num_classes()), None)

    def as_steps(self) -> list[dict[str, Any]]:
        """Return the list of steps as plain JSON, from which `build_batch_stage` builds it."""
        return [
            {e.name: e.step.model_dump(mode="json", exclude_none=True) | {"on": list(e.layouts)}}
            for e in self.entries
        ]

    @property
    def fingerprint(self) -> str:
        """A hash of the steps and their parameters, equal for two files that mean the same.

        It is "" if there are no steps.
        """
        if not self.entries:
            return ""
        content: list[list[Any]] = [
            [e.key, e.step.model_dump(mode="json", exclude_none=True)]
            + ([list(e.layouts)] if tuple(e.layouts) != self.main else [])
            for e in self.entries
        ]
        content += [["from epoch", epoch, s.fingerprint] for epoch, s in self.later.items()]
        text = json.dumps(content, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
