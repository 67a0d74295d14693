"""The contracts Source and Index, and the code that several sources share.

`source` and `index` hold the contracts. The other modules read labels, shards, manifests and
arrays, and save indexes to files. Sources, the cache and engines import this folder.
Start reading in index.py.
"""
