"""Engines: each turns the sampler's plans into batches of tensors.

`base` is the contract that the loader relies on, and `registry` finds engines by name. `batch` has
the parts of a batch that all engines share. `last_steps` runs the last steps of a pipeline on whole
batches, such as batches from other processes. `bad_samples` handles samples that cannot be read or
decoded: it skips and lists them or ends the run, and explains why they failed.

Each folder is an engine, which only `registry` imports. The loader and the folders above it import
this folder. Start reading in base.py.
"""
