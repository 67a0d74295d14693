"""Fuel's tutorial: batches that come 5 ms late. python server.py, and python train.py beside it."""

import time

import gpupipe

examples = [([n, n + 1.0], n % 2) for n in range(1000)]


def wait(array):  # noqa: D103
    time.sleep(0.005)
    return array


if __name__ == "__main__":
    steps = [{"python": {"call": "server:wait"}}]
    gpupipe.start_server(gpupipe.load(examples, pipeline=steps, batch_size=1, device="cpu"))
