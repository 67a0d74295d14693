"""Measures how long a training loop waits for data, for TensorBoard and Prometheus too."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gpupipe.errors import GpupipeError
from gpupipe.loader import Loader
from gpupipe.runtime.installation import require_extra
from gpupipe.runtime.metrics_endpoint import LOOPBACK, MetricsEndpoint


class Monitor:
    """Measures how long a training loop waits for the batches of a loader.

    Iterate over the monitor, or iterate over the loader and call `step()` after every training
    step. Iterating over the monitor leaves out the time between epochs, such as validation.

    The monitor measures how long the loop blocks until it gets a batch. It does not see how long a
    GPU is idle: kernels run asynchronously, and a GPU may still work while the loop waits.

    Attributes:
        loader: The loader that the monitor measures.
        steps: Number of steps measured.
        seconds: Duration of all steps, including the waiting.
        waited: Seconds spent waiting for batches, a part of `seconds`.
        on_step: Functions that are called after each step, without arguments.

    Examples:
        >>> monitor = gpupipe.Monitor(loader)
        >>> for batch in monitor:
        ...     train(batch)
        >>> print(monitor.summary())
        waiting for data: 31% of step time (10.4 of 33.5 ms, over 1,000 steps)
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.steps = 0
        self.seconds = 0.0
        self.waited = 0.0
        self.on_step: list[Callable[[], None]] = []
        self.resume()

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.resume()
        for batch in self.loader:
            yield batch
            self.step()

    def resume(self) -> None:
        """Start the next step now, so that the time since the last step is not measured."""
        self._since, self._waited_before = time.perf_counter(), self.loader.waited

    def step(self) -> None:
        """End the current step, which includes the waiting for its batch, and start the next."""
        self.steps += 1
        now, waited = time.perf_counter(), self.loader.waited
        self.seconds += now - self._since
        self.waited += waited - self._waited_before
        self._since, self._waited_before = now, waited
        for function in self.on_step:
            function()

    def add(self, other: "Monitor | None") -> None:
        """Add the steps and times of another monitor; None adds nothing."""
        if other is not None:
            self.steps += other.steps
            self.seconds += other.seconds
            self.waited += other.waited

    @property
    def share(self) -> float:
        """Share of the step time that was spent waiting, 0 to 1; 0 if no step was measured."""
        return self.waited / self.seconds if self.seconds else 0.0

    @property
    def accelerator_utilisation(self) -> float:
        """Share of the step time that was not spent waiting, 0 to 1; 0 if no step was measured.

        This is the accelerator utilisation (AU) of MLPerf Storage: the computing time divided by
        the running time. MLPerf Storage simulates the computing time of an accelerator. Here, it is
        the step time minus the waiting time. Source: github.com/mlcommons/storage, Rules.md:
        AU = total_compute_time / total_benchmark_running_time.
        """
        return 1 - self.share if self.seconds else 0.0

    def metrics(self) -> dict[str, float]:
        """Return the measurements for a logger.

        Returns:
            A dict: "data/wait_share", the share of the step time spent waiting, 0 to 1;
            "data/accelerator_utilisation", MLPerf Storage's AU, 0 to 1; "data/wait_ms" and
            "data/step_ms", the mean waiting time and the mean duration of a step, in milliseconds.
        """
        return _metrics(*self._totals())

    def _totals(self) -> tuple[int, float, float]:
        return self.steps, self.seconds, self.waited

    def summary(self) -> str:
        """Return the measurements as one line of text."""
        if not self.steps:
            return "waiting for data: no step was measured"
        metrics = self.metrics()
        return (
            f"waiting for data: {self.share:.0%} of step time ({metrics['data/wait_ms']:.1f} of "
            f"{metrics['data/step_ms']:.1f} ms, over {self.steps:,} steps)"
        )


def _metrics(steps: int, seconds: float, waited: float) -> dict[str, float]:
    share = waited / seconds if seconds else 0.0
    return {
        "data/wait_share": share,
        "data/accelerator_utilisation": 1 - share if seconds else 0.0,
        "data/wait_ms": 1000 * waited / max(1, steps),
        "data/step_ms": 1000 * seconds / max(1, steps),
    }


class TensorBoardExporter:
    """Writes the measurements of a monitor as scalars that TensorBoard shows.

    It writes the values of Monitor.metrics(): data/wait_share and data/accelerator_utilisation from
    0 to 1, data/wait_ms and data/step_ms in milliseconds. Each point is the mean over the steps
    since the last point. Its step is the monitor's `steps`. Needs the extra `tensorboard`.

    Examples:
        >>> monitor = gpupipe.Monitor(loader)
        >>> with TensorBoardExporter(monitor, "runs/lfw", every=50):
        ...     for batch in monitor:
        ...         train(batch)
    """

    def __init__(self, monitor: Monitor, writer: Any, every: int = 50) -> None:
        """Start to write, from the next step on.

        Args:
            monitor: The monitor whose measurements are written.
            writer: A folder for event files, or a torch.utils.tensorboard.SummaryWriter.
            every: Steps between two points, at least 1.

        Raises:
            GpupipeError: If tensorboard is not installed.
            ValueError: If `every` is below 1.
        """
        if every < 1:
            raise ValueError(f"every is {every}: write a number of steps from 1 on")
        self._owns_writer = not hasattr(writer, "add_scalar")
        if self._owns_writer:
            require_extra("tensorboard", ("tensorboard",), "TensorBoardExporter")
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(str(writer))
        self._monitor, self._writer, self._every = monitor, writer, every
        self._written = monitor._totals()
        monitor.on_step.append(self._on_step)

    def close(self) -> None:
        """Write a point for the steps since the last point, and stop writing. Idempotent."""
        if self._on_step not in self._monitor.on_step:
            return
        self._monitor.on_step.remove(self._on_step)
        self._write()
        if self._owns_writer:
            self._writer.close()
        else:
            self._writer.flush()

    def _on_step(self) -> None:
        if self._monitor.steps - self._written[0] >= self._every:
            self._write()

    def _write(self) -> None:
        totals = self._monitor._totals()
        steps, seconds, waited = (new - old for new, old in zip(totals, self._written, strict=True))
        if steps:
            for name, value in _metrics(int(steps), seconds, waited).items():
                self._writer.add_scalar(name, value, self._monitor.steps)
            self._written = totals

    def __enter__(self) -> "TensorBoardExporter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class PrometheusExporter:
    """Serves the measurements of a monitor to Prometheus, at http://127.0.0.1:PORT/metrics.

    The counters are gpupipe_monitor_steps_total, gpupipe_monitor_step_seconds_total and
    gpupipe_monitor_wait_seconds_total, with the label `rank`. The share of waiting over five
    minutes is rate(gpupipe_monitor_wait_seconds_total[5m]) divided by
    rate(gpupipe_monitor_step_seconds_total[5m]). The gauges gpupipe_monitor_wait_ratio and
    gpupipe_monitor_accelerator_utilisation_ratio, 0 to 1, cover all steps so far. Needs the extra
    `prometheus`.

    Attributes:
        port: The port at which the measurements are served.

    Examples:
        >>> monitor = gpupipe.Monitor(loader)
        >>> with PrometheusExporter(monitor, port=9464):
        ...     for batch in monitor:
        ...         train(batch)
    """

    def __init__(self, monitor: Monitor, port: int = 0) -> None:
        """Start to serve, on the loopback interface only.

        Args:
            monitor: The monitor whose measurements are served.
            port: The port; 0 takes a free one.

        Raises:
            GpupipeError: If prometheus-client is not installed, or the port is taken.
        """
        require_extra("prometheus", ("prometheus_client",), "PrometheusExporter")
        try:
            self._endpoint = MetricsEndpoint(partial(_collect, monitor), port)
        except OSError as e:
            raise GpupipeError(
                f"PrometheusExporter cannot listen at {LOOPBACK}:{port}: {e.strerror}; "
                "write another port, or 0 for a free one"
            ) from None
        self.port = self._endpoint.port

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._endpoint.close()

    def __enter__(self) -> "PrometheusExporter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _collect(monitor: Monitor) -> Iterator[Any]:
    """Yield the metrics of a monitor for Prometheus."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    rank = [str(monitor.loader.sampler.rank)]
    for kind, name, help_text, value in (
        (CounterMetricFamily, "steps", "Training steps.", monitor.steps),
        (CounterMetricFamily, "step_seconds", "Seconds of all steps.", monitor.seconds),
        (CounterMetricFamily, "wait_seconds", "Seconds spent waiting.", monitor.waited),
        (GaugeMetricFamily, "wait_ratio", "Waiting per step time.", monitor.share),
        (
            GaugeMetricFamily,
            "accelerator_utilisation_ratio",
            "Step time without waiting, per step time: AU of MLPerf Storage.",
            monitor.accelerator_utilisation,
        ),
    ):
        family = kind(f"gpupipe_monitor_{name}", help_text, labels=["rank"])
        family.add_metric(rank, value)
        yield family
