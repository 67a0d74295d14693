import numpy as np


def test_a_cut_file_that_comes_through_and_a_good_one_that_is_blamed_are_found() -> None:
    from first_gpu import damage

    image = np.full((3, 4, 4), 100.0, np.float32)
    checks = damage._judged(
        "load 1", {"a": image}, {"a": image + 90, "b": image}, {"b", "cut-50"}, {"cut-50", "cut-99"}
    )
    assert [(what, holds) for what, holds, _ in checks] == [
        ("cut files are skipped and named, load 1", False),
        ("no good file is blamed, load 1", False),
        ("good files beside cut ones are right, load 1", False),
    ]
    assert "cut-99" in checks[0][2]
