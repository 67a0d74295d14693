"""Download workers: processes that fill the cache.

`worker_pool` starts and watches the processes. `downloader` is the program of one process. `fill`
makes and publishes shards, and `fetching` draws and fetches their samples. `waiting` makes an epoch
wait for missing shards. Other modules of the cache import this folder. Start reading in fill.py.
"""
