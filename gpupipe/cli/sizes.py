"""Sizes in bytes, as commands print them."""

from __future__ import annotations


def format_size(count: float) -> str:
    """Return a size with its unit: 1.5 GB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
