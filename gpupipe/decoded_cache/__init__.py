"""The decoded cache: what the first steps of a pipeline make of each image, kept as uint8.

`decoded_cache` is what engines use: it finds the steps whose result can be kept, decode and the
steps after it that draw nothing, and gets or stores a sample. `record_file` is the file in /dev/shm
or on disk, which processes share; `layout` says what its bytes mean. `location` finds the file of a
job, refuses what does not fit, and lists and empties caches for the command line.

A record is trusted only if its slot and its pixels match their checksums. The slot is written
after the pixels. So a process may be killed at any point. Engines, the config and the command line
import this folder; it imports pipelines and what is below them. Start reading in decoded_cache.py.
"""
