"""An image that nothing is wrong with: where it cannot be decoded either, no sample is to blame."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from nvidia.dali import Pipeline, fn, types
from PIL import Image

from gpupipe.engines.bad_samples import telling_line
from gpupipe.engines.dali import ops
from gpupipe.engines.dali.pending_ops import Decoding
from gpupipe.errors import EngineError
from gpupipe.runtime.machine_failures import machine_failure

_SIDE = 32


class KnownGood:
    """Decodes a small JPEG, as an engine on that device does.

    The decoder is made when it is first asked for, and kept; after that a check takes 0.1 ms on a
    CPU.

    Args:
        device_id: the GPU's number, or None for DALI's CPU back end.
    """

    def __init__(self, device_id: int | None) -> None:
        self._device_id = device_id
        self._pipe: Any = None

    def check(self, said: str) -> None:
        """Raise EngineError if the image cannot be decoded. said: how a sample failed before."""
        try:
            self._decode()
        except RuntimeError as e:
            self._pipe = None
            first, why = (telling_line(text).rstrip(" :") for text in (said, str(e)))
            raise EngineError(
                "DALI cannot decode an image that nothing is wrong with "
                f"({machine_failure(e) or why}), so that no sample is "
                f"to blame for '{first}': `gpupipe doctor` looks at the machine"
            ) from e

    def _decode(self) -> None:
        if self._device_id is not None:
            torch.cuda.synchronize(
                self._device_id
            )  # raises what has broken the GPU's context, whoever did
        if self._pipe is None:
            self._pipe = self._built()
        (decoded,) = self._pipe.run()
        decoded.as_cpu()

    def _built(self) -> Any:
        encoded, device = _jpeg(), "cpu" if self._device_id is None else "gpu"
        pipe = Pipeline(1, 1, self._device_id, prefetch_queue_depth=1, exec_dynamic=True)
        with pipe:
            data = fn.external_source(lambda: [encoded], batch=True, dtype=types.UINT8, ndim=1)
            pipe.set_outputs(ops.decode(data, device, Decoding(), {}))
        pipe.build()
        return pipe


def _jpeg() -> np.ndarray[Any, np.dtype[np.uint8]]:
    shades = np.add.outer(np.arange(_SIDE), np.arange(_SIDE)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(shades).convert("RGB").save(buffer, "JPEG")
    return np.frombuffer(buffer.getvalue(), np.uint8)
