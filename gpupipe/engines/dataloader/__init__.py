"""The DataLoader engine: the pipeline in worker processes of torch.utils.data.DataLoader.

`engine` is the parent's side, `works` the DataLoader's sampler, `samples` the workers' side.
`workers` explains why a worker ended; `culprits` finds samples that crash a process.
Only the loader imports this folder, by name. Start reading in samples.py.
"""
