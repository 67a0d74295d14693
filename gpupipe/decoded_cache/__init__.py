"""The decoded cache: keeps the output of a pipeline's first steps for each image, as uint8.

Engines use `decoded_cache`. It finds the steps whose output can be kept (decode, and the steps
after it that draw no random numbers), and gets or stores samples. `record_file` reads and writes
the file in /dev/shm or on disk, which processes share; `layout` defines the file's bytes.
`location` finds the file of a job, refuses a cache that is too large, and lists and empties caches.

Readers trust a record only if its slot and its pixels match their checksums. The slot is written
after the pixels, so a process may be killed at any point. Engines, the config and the command line
import this folder; it imports pipelines and lower layers. Start reading in decoded_cache.py.
"""
