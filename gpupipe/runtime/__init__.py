"""The process and its machine: devices, ranks, child processes, files, memory, GPU probes, plugins.

`devices` and `ranks` say where a process runs, `child_process` starts others, `files` are shared
with them, `registry` finds classes by name, and `capability_probe` tries what DALI can do. Nothing
here imports data sets or steps, and nearly every folder may import this one. Start reading in
devices.py.
"""
