"""The process and its machine: devices, ranks, child processes, files, memory, GPU probes, plugins.

`devices` finds the GPUs, `ranks` the rank and the cores of this process, `process` starts and ends
child processes, `files` has locks and atomic writes, `registry` finds classes by name, and
`capability_probe` tests what DALI can do. Nothing here imports data sets or steps, and nearly every
folder may import this one. Start reading in devices.py.
"""
