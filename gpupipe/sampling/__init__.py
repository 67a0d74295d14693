"""The order of samples, and the random numbers of steps.

`sampler` plans which samples each batch has; `draws` computes the random numbers of each sample by
hashing. The config and the engines import this folder. Start reading in sampler.py.
"""
