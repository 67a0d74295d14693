"""What a data set is: an index of samples, and the sources that make one.

`source` and `index` are the contracts; the rest is what several sources share: labels, byte ranges
of shards, index files, manifests, arrays. Sources, the cache and engines import this folder.
Begin to read in index.py.
"""
