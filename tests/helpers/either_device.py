"""The device of those tests in tests/gpu that run on a CPU too: on a GPU if there is one.

On a CPU they show that what they do there is right in itself, before a GPU is at hand. A test that
does is marked `either_device`.
"""

import torch

TYPE = "cuda" if torch.cuda.is_available() else "cpu"
"""Of torch's devices."""
DEVICE = "gpu" if TYPE == "cuda" else "cpu"
"""Of gpupipe's."""
