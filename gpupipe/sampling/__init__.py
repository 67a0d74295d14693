"""The order of samples, and the random numbers of steps.

`sampler` plans which samples each batch has: those of a `selection`, in the order of `epochs`.
`draws` computes the random numbers of each sample by hashing, and `siblings` those of several
batches at once. The config and the engines import this folder. Start reading in sampler.py.
"""
