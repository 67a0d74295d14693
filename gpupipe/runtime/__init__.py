"""The process and its machine: devices, ranks, the cache folder, memory, GPU probes, plugins.

Nothing here imports data sets or steps, and nearly every folder may import this one. Start reading
in devices.py.
"""
