"""python: calls a function of the user's on whole batches."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pydantic
from pydantic import Field, PrivateAttr

from gpupipe.batch_stage.batch_step import BatchStep, Images, MixedBatch
from gpupipe.errors import EngineError, StepError
from gpupipe.pipeline.step import Params, Sampled, Spec, StepIncompatibleError, Uniforms
from gpupipe.runtime.function_draws import join_seeds, seeded_generators, split_seeds
from gpupipe.runtime.function_failures import explain_failure
from gpupipe.runtime.user_functions import FunctionMissingError, UserFunction, find_function
from gpupipe.schema.function_name import FunctionName

if TYPE_CHECKING:
    from torch import Tensor


class PythonBatchStep(BatchStep):
    """Call a Python function on the images of each batch.

    The function takes a tensor (B, C, H, W) on the loader's device, which it may change, and
    returns one of the same shape and dtype. If it has a parameter `sample`, it takes a dict with
    the tensor by the name of its field. Labels stay as they are.

    A function that draws random numbers takes a parameter `rng`: a torch.Generator on the CPU, or
    NumPy's with `rng: np.random.Generator`. Its seed depends on the loader's seed, the epoch and
    the samples of the batch. Before each call torch's, NumPy's and Python's global generators get
    the same seed, and afterwards they go on as before.

    Attributes:
        call: The function, as "module:function". The module lies beside the YAML file, or Python
            can import it. A class is constructed once in each process with `args`, and its objects
            are called.
        args: Keyword arguments of the function, or of the class.
    """

    call: FunctionName
    args: dict[str, Any] = Field({})

    num_uniforms = 1
    uses_labels = False

    _folder: Path | None = PrivateAttr(None)
    _where: str = PrivateAttr("")

    @pydantic.model_validator(mode="after")
    def _keep_location(self, info: pydantic.ValidationInfo) -> Self:
        context = info.context or {}
        self._folder, self._where = context.get("folder"), context.get("where", "")
        return self

    def check(self, fields: Mapping[str, Spec]) -> None:
        misfit = self._find().explain_misfit()
        if misfit:
            raise StepIncompatibleError(misfit)

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the seed of each batch's generator.

        Returns:
            A dict: "seed", int32 (N, 2) for N batches, its upper bits, and its lower 31.
        """
        return {"seed": split_seeds((u[:, 0] * 2.0**53).astype(np.int64))}

    def torch(self, images: Images, labels: "Tensor", p: Params) -> MixedBatch:
        import torch

        function, seed = self._find(), int(join_seeds(p["seed"]))
        called = {}
        for name, image in images.items():
            own = image.clone(memory_format=torch.contiguous_format)
            try:
                with seeded_generators(seed):
                    called[name] = function(own, name, seed)
            except Exception as e:
                failure = explain_failure(e, function.find_line)
                if failure.machine:
                    raise EngineError(failure.machine) from e
                where = f"{self._where}: " if self._where else ""
                mistake = f"step 'python': {function.name} {failure.reason}"
                raise StepError(f"{where}{mistake}", failure.text) from e
        return called, labels

    def _find(self) -> UserFunction:
        try:
            return find_function(self.call, self.args, self._folder)
        except FunctionMissingError as e:
            raise StepIncompatibleError(str(e)) from e
