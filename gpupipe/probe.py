"""Whether this GPU's decoder survives being asked for a part of an image: tried in a process of its own, since it may crash."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

_SECONDS = 120
_CODE = """
import io, sys
import numpy as np
from PIL import Image
from nvidia.dali import Pipeline, fn
buffer = io.BytesIO()
noise = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
Image.fromarray(noise).resize((640, 480)).save(buffer, "JPEG")
data = np.frombuffer(buffer.getvalue(), np.uint8)
pipe = Pipeline(batch_size=8, num_threads=2, device_id=int(sys.argv[1]))
with pipe:
    encoded = fn.external_source(lambda: [data] * 8, batch=True)
    pipe.set_outputs(fn.decoders.image_slice(encoded, start=[10, 20], shape=[200, 300], axes=[0, 1], device="mixed"))
for _ in range(3):
    (images,) = pipe.run()
    assert images.as_cpu().at(7).shape == (200, 300, 3)
"""


@cache
def region_decode_survives(device_id: int) -> bool:
    """Whether region-of-interest decoding works on GPU `device_id`. Takes some seconds once in a process."""
    try:
        done = subprocess.run([sys.executable, "-c", _CODE, str(device_id)], capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
