"""The decoded cache: what the first steps of a pipeline make of each image, kept as uint8.

`prefix` finds the steps whose result can be kept: decode, and the steps after it that draw
nothing. `decoded_cache` is what engines use: look up a sample, or store it. `record_file` is the
file in /dev/shm or on disk, which processes share; `layout` says what its bytes mean. `location`
finds the file of a job, and refuses what does not fit. `listing` is for the command line.

A record is trusted only if its slot and its pixels match their checksums. The slot is written
after the pixels. So a process may be killed at any point. Engines, the config and the command line
import this folder; it imports pipelines and what is below them. Start reading in decoded_cache.py.
"""
