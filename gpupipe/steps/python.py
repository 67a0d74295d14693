"""python: calls a function of the user's on each image."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import pydantic
from pydantic import Field, PrivateAttr

from gpupipe.errors import EngineError, StepError
from gpupipe.pipeline.function_output import Returns, draw_images
from gpupipe.pipeline.spec_checks import check_decoded
from gpupipe.pipeline.step import (
    NoLoweringError,
    Params,
    Primitives,
    Sampled,
    SampleIncompatibleError,
    Spec,
    Step,
    StepIncompatibleError,
    Uniforms,
)
from gpupipe.runtime.function_draws import (
    GlobalDrawsError,
    check_call,
    check_draws,
    join_seeds,
    split_seeds,
)
from gpupipe.runtime.function_failures import explain_failure, record_failure
from gpupipe.runtime.function_pool import FunctionPool, ProcessCall
from gpupipe.runtime.systems import explain_missing_posix
from gpupipe.runtime.user_functions import (
    FunctionMissingError,
    UserCall,
    UserFunction,
    find_function,
    name_function,
)
from gpupipe.schema.field_types import NUMBER, WHOLE, should_be
from gpupipe.schema.function_name import FunctionName


class Python(Step):
    """Call a Python function on each image.

    The function takes the image, a tensor (C, H, W) that it may change, and returns a tensor. If it
    has a parameter `sample`, it takes a dict with the image by the name of its field, and returns
    such a dict, or the image.

    A function that draws random numbers takes a parameter `rng`: a torch.Generator, or NumPy's
    with `rng: np.random.Generator`. Its seed depends on the loader's seed, the epoch and the
    sample, so that the sample gets the same draws on every engine and rank, and after a resume.

    The function runs on several threads at once, on the CPU. There a function that draws from
    global generators is refused. With `workers` it runs in processes, where torch's, NumPy's and
    Python's generators get the same seed as `rng` before each call.

    Attributes:
        call: The function, as "module:function". The module lies beside the YAML file, or Python
            can import it. A class is constructed once in each process with `args`, and its objects
            are called.
        args: Keyword arguments of the function, or of the class.
        returns: What the function returns. By default it is learned from two drawn images, and
            compared with every image.
        workers: The number of processes in which the function runs; 0 for the threads of this one.
            The workers of `engine: dataloader` call it themselves.
        timeout: With `workers`, the seconds after which a call is ended, and the run with it.
        moves_pixels: Whether the function may move pixels. A pipeline with boxes or points refuses
            functions that may; they stay as they are if this is false.
    """

    call: FunctionName
    args: dict[str, Any] = {}
    returns: Returns | None = None
    workers: Annotated[int, Field(ge=0, le=1024), WHOLE] = 0
    timeout: Annotated[float, Field(gt=0, le=86_400), NUMBER] = 60
    moves_pixels: bool = True

    example = {"call": "torchvision.transforms.v2.functional:posterize", "args": {"bits": 2}}
    num_uniforms = 1
    calls_user_code = True
    outside_fingerprint = frozenset({"returns", "workers", "timeout"})

    _folder: Path | None = PrivateAttr(None)
    _where: str = PrivateAttr("")
    _field: str = PrivateAttr("image")
    _is_on_several: bool = PrivateAttr(False)
    _pool: FunctionPool | None = PrivateAttr(None)
    _input: Spec | None = PrivateAttr(None)
    _output: Spec | None = PrivateAttr(None)
    """What the function returns; None until `resolve`."""

    @pydantic.model_validator(mode="after")
    def _keep_location(self, info: pydantic.ValidationInfo) -> Self:
        context = info.context or {}
        self._folder, self._where = context.get("folder"), context.get("where", "")
        on = context.get("on", ())
        self._field, self._is_on_several = next(iter(on), "image"), len(on) > 1
        if self.workers:
            if problem := explain_missing_posix(f"workers: {self.workers}"):
                raise should_be(f"0: another number {problem}")
            self._pool = FunctionPool(
                self.call, self.args, self._folder, self.workers, self.timeout
            )
        return self

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the seed of each sample's generator.

        Returns:
            A dict: "seed", int32 (B, 2), its upper bits, and its lower 31.
        """
        return {"seed": split_seeds((u[:, 0] * 2.0**53).astype(np.int64))}

    def resolve(self, input_spec: Spec) -> Self:
        resolved = super().resolve(input_spec)
        if not input_spec.encoded:
            resolved.__dict__["returns"] = self.returns or self._learn(input_spec)
            assert resolved.returns is not None
            resolved._output = resolved.returns.apply_to(input_spec)
            resolved._input = input_spec
        return resolved

    def infer_spec(self, input_spec: Spec) -> Spec:
        check_decoded(input_spec)
        assert self._output is not None
        return self._output

    @classmethod
    def guess_spec(cls, input_spec: Spec) -> None:
        """Guess nothing: the function may return any shape and dtype."""

    def explain_refusal(self) -> str:
        if not self.moves_pixels:
            return ""
        return (
            "nobody knows where its function moves pixels: write 'moves_pixels: false' if it moves "
            "none, put it into a pipeline without boxes and points, or write a step "
            "(docs/plugins.md)"
        )

    def lower(self, image: Primitives, p: Params) -> None:
        assert self._output is not None
        if self._output.size is None and self._changes_size:
            raise NoLoweringError(
                "the size of what its function returns is not known before it runs: write "
                "'returns: {size: [height, width]}' if it is always the same"
            )
        output = self._output
        size = output.size if self._changes_size else None
        run: Any = self._run
        if self._pool is not None:
            run = ProcessCall(run, self._pool, self._field, output.dtype, output.channels, size)
        image.call_torch(run, p["seed"], size=size)

    def torch(self, image: Any, p: Params) -> Any:
        return self._run(image, p["seed"])

    @property
    def _changes_size(self) -> bool:
        return self.returns is not None and self.returns.size is not None

    def list_calls(self) -> list[UserCall]:
        name, is_named = name_function(self.call), isinstance(self.call, str)
        return [
            UserCall(name, self._where, is_named, self.workers, self._hash_text, self._try_once)
        ]

    def _hash_text(self) -> str:
        """Return a hash of the function's text; "" if none is at hand, as in a server's client."""
        try:
            return self._find().hash_text()
        except StepIncompatibleError:
            return ""

    def _try_once(self) -> Any:
        assert self._input is not None
        return self._run(draw_images(self._input)[0], (0, 0))

    def release(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _find(self) -> UserFunction:
        """Return the function; raise StepIncompatibleError if there is none that can be called."""
        try:
            function = find_function(self.call, self.args, self._folder)
        except FunctionMissingError as e:
            raise StepIncompatibleError(str(e)) from e
        misfit = function.explain_misfit()
        if function.takes_sample and self._is_on_several:
            misfit = (
                f"{function.name} takes a sample, but fields go through the steps one after "
                "another: write its parameter 'image' in place of 'sample', or one field under 'on'"
            )
        if misfit:
            raise StepIncompatibleError(misfit)
        return function

    def _run(self, image: Any, seed: Any) -> Any:
        """Return what the function returns for an image, after a comparison with the spec."""
        try:
            function = self._find()
        except StepIncompatibleError as e:
            raise self._blame(str(e)) from e
        output = self._call(function, image, seed)
        spec = self._output
        assert spec is not None
        differs = spec.describe_mismatch(output, spec.canonical_sizes)
        if not self._changes_size and output.shape[-self._space :] != image.shape[-self._space :]:
            differs = f"{tuple(output.shape)} for an image {tuple(image.shape)}"
        if not differs:
            return output
        raise self._blame(
            f"{function.name} returned {differs}; but 'returns', or two drawn images, say "
            f"{self._describe_output()}: write 'returns: {{dtype: ..., channels: ..., size: ...}}' "
            "as it is for all images, with 'size: any' if it differs between them"
        )

    def _describe_output(self) -> str:
        assert self._output is not None
        return f"{self._output}" + ("" if self._changes_size else ", of the size of the input")

    def _call(self, function: UserFunction, image: Any, seed: Any, on: str = "") -> Any:
        """Call the function on a copy of an image; raise StepError if it fails."""
        import torch

        number = int(join_seeds(seed))
        try:
            if self._pool is None:
                own = image.clone(memory_format=torch.contiguous_format)
                return function(own, self._field, number)
            call = partial(self._pool.call, field=self._field, seed=number)
            return check_call(function.name, call, image)
        except SampleIncompatibleError:
            raise
        except (GlobalDrawsError, FunctionMissingError) as e:
            raise self._blame(str(e)) from e
        except (Exception, SystemExit) as e:
            failure = explain_failure(e, function.find_line)
            if failure.machine:
                raise EngineError(failure.machine) from e
            if failure.is_a(SampleIncompatibleError):  # in another process
                raise SampleIncompatibleError(failure.message) from e
            raise self._blame(f"{function.name} {failure.reason}{on}", failure.text) from e

    def _blame(self, mistake: str, text: str = "") -> StepError:
        """Return a StepError about the function, and keep it for engines that lose exceptions."""
        where = f"{self._where}: " if self._where else ""
        error = StepError(f"{where}step 'python': {mistake}", text)
        record_failure(error)
        return error

    def _learn(self, input_spec: Spec) -> Returns:
        """Call the function on two drawn images of different sizes, where sizes may differ.

        Raises:
            StepIncompatibleError: There is no such function.
            StepError: The function fails, or draws from global generators.
        """
        function = self._find()
        images = draw_images(input_spec)
        advice = "; 'returns: {dtype: ..., channels: ..., size: ...}' spares this trial"
        on = [f" on a drawn image {tuple(i.shape)} {input_spec.dtype}{advice}" for i in images]
        with check_draws():
            outputs = [self._call(function, image, (0, n), on[n]) for n, image in enumerate(images)]
        wrong = next((o for o in outputs if o.ndim != images[0].ndim), None)
        if wrong is not None:
            raise self._blame(
                f"{function.name} returned {tuple(wrong.shape)} for {tuple(images[0].shape)}: "
                "it must keep the number of axes, channels first"
            )
        return Returns.of_outputs(input_spec, images, outputs)
