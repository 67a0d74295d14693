"""Every test here has a folder in memory of its own."""

# pytest finds the fixture here.
from helpers.decoded_caches import shared_memory as shared_memory  # noqa: PLC0414
