"""The process and the machine it runs on: devices, ranks, the cache folder, malloc, plugins.

Nothing here knows of data or steps, and nearly every folder may import it. Begin to read in
devices.py.
"""
