"""The contracts Source, Index and Column, and the code that several sources share.

`source`, `index` and `columns` hold the contracts. The other modules read labels, shards, manifests
and arrays, save indexes to files, and show in a notebook how far indexing is. Sources, the cache
and engines import this folder. Start reading in index.py.
"""
