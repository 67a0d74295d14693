"""A known good image: if DALI cannot decode it either, the machine failed and not a sample."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from nvidia.dali import Pipeline, fn, types
from PIL import Image

from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.dali.operators import ops
from gpupipe.engines.failure_reasons import find_cause
from gpupipe.errors import EngineError
from gpupipe.runtime.machine_failures import machine_failure

_SIDE = 32


class KnownGood:
    """Decodes a small valid JPEG with the same decoder as an engine on that device.

    The first check builds a DALI pipeline and keeps it. Later checks take 0.1 ms on a CPU.

    Args:
        device_id: The GPU's number, or None for DALI's CPU back end.
    """

    def __init__(self, device_id: int | None) -> None:
        self._device_id = device_id
        self._pipe: Any = None

    def check(self, said: str) -> None:
        """Raise EngineError if the image cannot be decoded.

        Args:
            said: The message with which a sample failed before.
        """
        try:
            self._decode()
        except RuntimeError as e:
            self._pipe = None
            first, why = (find_cause(text).rstrip(" :") for text in (said, str(e)))
            raise EngineError(
                "DALI cannot decode an image that nothing is wrong with "
                f"({machine_failure(e) or why}), so that no sample is "
                f"to blame for '{first}': `gpupipe doctor` looks at the machine"
            ) from e

    def close(self) -> None:
        """Release the pipeline. Idempotent."""
        self._pipe = None

    def _decode(self) -> None:
        if self._device_id is not None:
            # raises any earlier error that has corrupted the GPU's context
            torch.cuda.synchronize(self._device_id)
        if self._pipe is None:
            self._pipe = self._build()
        (decoded,) = self._pipe.run()
        decoded.as_cpu()

    def _build(self) -> Any:
        encoded, device = _jpeg(), "cpu" if self._device_id is None else "gpu"
        pipe = Pipeline(1, 1, self._device_id, prefetch_queue_depth=1, exec_dynamic=True)
        with pipe:
            data = fn.external_source(lambda: [encoded], batch=True, dtype=types.UINT8, ndim=1)
            pipe.set_outputs(ops.decode(data, device, DecodeOptions(), {}))
        pipe.build()
        return pipe


def _jpeg() -> np.ndarray[Any, np.dtype[np.uint8]]:
    shades = np.add.outer(np.arange(_SIDE), np.arange(_SIDE)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(shades).convert("RGB").save(buffer, "JPEG")
    return np.frombuffer(buffer.getvalue(), np.uint8)
