"""The kernel of functions of the user's that run in processes of their own.

As a stage it hands images to the processes without the GIL, and waits for them. A sample whose call
fails runs again in the reference kernel, which raises the error of the function.
"""

import json
from functools import partial

import numpy as np

from gpupipe.engines.cpu import kernels, ops
from gpupipe.engines.cpu.compiled_kernels import can_run_stages
from gpupipe.engines.cpu.patterns import Match
from gpupipe.engines.cpu.program import Kernel, Rule, Stage
from gpupipe.pipeline.spec_checks import is_picture
from gpupipe.runtime.function_draws import join_seeds
from gpupipe.runtime.function_pool import ProcessCall
from gpupipe.runtime.installation import find_extension

_extension = find_extension()


def _bind_call(match: Match) -> Kernel | None:
    op = match[ops.CallTorchOp]
    call = op.function
    if not isinstance(call, ProcessCall) or not is_picture(op.spec):
        return None
    pairs = (op.spec.dtype, op.spec.channels), (call.dtype, call.channels)
    if not all(can_run_stages(*pair) for pair in pairs):
        return None

    def create() -> Stage:
        (seeds,) = op.values
        height, width = call.size or (0, 0)
        item_size = np.dtype(call.dtype).itemsize
        return Stage(
            _extension.call_stage(
                call.pool.open_native(),
                join_seeds(seeds),
                json.dumps(call.field),
                (call.channels, item_size, height, width),
            )
        )

    run = partial(kernels.run_call_torch, op)
    return Kernel("call_processes", run, create, needs_torchvision=True)


def create_rules() -> list[Rule]:
    """Return the rule, if the extension is built and on."""
    return [] if _extension is None else [Rule((ops.CallTorchOp,), _bind_call)]
