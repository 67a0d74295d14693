"""The DataLoader engine: the same work in the processes of torch.utils.data.DataLoader.

`engine` deals the work out, `samples` is what a worker does, `workers` says why one ended.
The loader imports it by name. Begin to read in samples.py.
"""
