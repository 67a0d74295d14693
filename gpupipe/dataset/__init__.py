"""The contracts Source, Index and Column, and the code that several sources share.

`source`, `index` and `columns` hold the contracts. The other modules read files, labels, shards,
manifests and arrays, and save indexes to files. Sources, the cache and engines import this folder.
Start reading in index.py.
"""
