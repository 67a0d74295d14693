"""Engines: each turns the sampler's plans into batches of tensors.

`base` is the contract that the loader relies on. `bad_samples` decides what happens to a sample
that cannot be read or decoded: it is skipped and listed, or it ends the run. The other folders are
the engines. The loader and the folders above it import this one. Start reading in base.py.
"""
