"""The contracts Source, Index and Column, and the code that several sources share.

`source`, `index` and `columns` hold the contracts. The other modules read files, labels, shards,
manifests and arrays, save indexes to files, and say which samples an epoch has. Sources, the cache
and engines import this folder. Start reading in index.py.
"""
