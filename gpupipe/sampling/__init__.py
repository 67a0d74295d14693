"""The order of samples, and the random numbers of steps.

`sampler` plans which samples a batch has, `draws` hashes what a step draws for each of them. The
config and the engines import it. Begin to read in sampler.py.
"""
