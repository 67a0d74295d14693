import itertools
import os


def test_a_sampler_tells_the_mean_of_what_it_reads() -> None:
    import time

    import gpu_measuring

    counter = itertools.count()
    with gpu_measuring.Sampler(
        {"power_watts": lambda: float(next(counter) % 2), "jpeg": lambda: 0.25}, seconds=0.001
    ) as sampler:
        deadline = time.monotonic() + 60
        while (
            not 0.3 < sampler.means(0.0).get("power_watts", 0.0) < 0.7
            and time.monotonic() < deadline
        ):
            os.sched_yield()
    found = sampler.means(0.0)
    assert found["jpeg"] == 0.25
    assert 0.3 < found["power_watts"] < 0.7
    assert sampler.means(time.perf_counter() + 1) == {}
    with gpu_measuring.Sampler({}) as nothing:
        pass
    assert nothing.means(0.0) == {}
