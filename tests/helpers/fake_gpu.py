"""A GPU that is not there: what torch would be asked to do on one, and whether any of it waits for
it.

Tensors are torch's FakeTensors, which have shapes and devices and no numbers. FakeTensorMode
refuses operators whose tensors are on different devices, as a GPU does.
"""

from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

GPU = torch.device("cuda", 0)
STREAM = torch.Stream(stream_id=7, device_index=0, device_type=1)
aten = torch.ops.aten


class Waits(AssertionError):
    """The CPU would wait for the GPU."""


class FakeGpu(TorchDispatchMode):
    """Raises Waits where the CPU would wait for the GPU, unless it is not `strict`. recorded:
    tensors and the streams that they were recorded on.

    FakeTensorMode knows neither page-locked memory nor record_stream: both are kept account of
    here.
    """

    def __init__(self, strict: bool = True) -> None:
        super().__init__()
        self._strict = strict
        self.recorded: list[tuple[torch.Tensor, Any]] = []
        self._pinned: list[torch.Tensor] = []
        self._modes = ExitStack()

    def __enter__(self) -> "FakeGpu":
        self._modes.enter_context(FakeTensorMode())
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._modes.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.record_stream.default:
            self.recorded.append((args[0], args[1]))
            return None
        if func is aten.is_pinned.default:
            return self._is_pinned(args[0])
        if func is aten._pin_memory.default:
            self._pinned.append(aten.clone.default(args[0]))
            return self._pinned[-1]
        if self._strict:
            self._check(func, args, kwargs)
        return func(*args, **kwargs)

    def _check(self, func: Any, args: Any, kwargs: Any) -> None:
        if func is aten._local_scalar_dense.default and args[0].device.type == "cuda":
            raise Waits("a number of the GPU is asked for")
        if func is aten._to_copy.default:
            self._check_copy(
                args[0],
                torch.device(kwargs.get("device") or args[0].device),
                kwargs.get("non_blocking", False),
            )
        if func is aten.copy_.default:
            self._check_copy(
                args[1],
                args[0].device,
                args[2] if len(args) > 2 else kwargs.get("non_blocking", False),
            )

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return any(tensor is pinned for pinned in self._pinned)

    def _check_copy(self, source: torch.Tensor, where: torch.device, non_blocking: bool) -> None:
        if source.device.type == where.type:
            return
        if where.type == "cpu":
            raise Waits("a tensor is copied from the GPU")
        if not (non_blocking and self._is_pinned(source)):
            raise Waits(
                "a copy to the GPU that blocks, or out of pageable memory "
                f"(non_blocking={non_blocking})"
            )
