"""Every test here has a folder in memory of its own."""

from helpers.decoded_caches import shared_memory as shared_memory  # noqa: PLC0414  # pytest finds it here
