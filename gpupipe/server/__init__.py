"""The data processing server: batches made in a process of their own, for training processes here
or elsewhere.
"""
