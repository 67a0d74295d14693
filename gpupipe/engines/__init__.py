"""Engines: each turns the sampler's plans into batches of tensors.

`base` is the contract that the loader relies on. `bad_samples` handles samples that cannot be read
or decoded. `dali/`, `dataloader/` and `remote/` are the engines. Start reading in base.py.
"""
