"""Engines: each turns the sampler's plans into batches of tensors.

`base` is the contract that the loader relies on, and `registry` finds engines by name. `batch` is
what all engines do to a batch. `bad_samples` decides what happens to a sample that cannot be read
or decoded: it is skipped and listed, or it ends the run; `failure_reasons` says why. The other
folders are the engines, which only `registry` imports. The loader and the folders above it import
this one.

Start reading in base.py.
"""
