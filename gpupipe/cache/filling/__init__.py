"""Download workers: processes that fill the cache.

`worker_pool` starts and watches them, `downloader` is one of them, and `fill` its work: `fetching`
draws the samples of a shard, and fetches them within a common limit of bytes per second. `waiting`
is what an epoch does whose shards are not there. The files of the cache import this folder. Start
reading in fill.py.
"""
