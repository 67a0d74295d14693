"""Fuel's tutorial: 5 epochs of steps of 10 ms. They take no longer than the steps alone."""

import time

from gpupipe import ServerDataStream

stream = ServerDataStream(("array", "label"), False)
for _ in range(5):
    for _arrays, _labels in stream.get_epoch_iterator():
        time.sleep(0.01)
