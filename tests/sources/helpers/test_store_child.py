import json
from pathlib import Path

from gpupipe.dataset.table_file import open_table
from gpupipe.formats.stored_arrays import StoreContents
from gpupipe.runtime.process import run_python
from helpers.array_stores import COUNT, write_hdf5

LIMITS = """
import json, resource, sys
import gpupipe.sources.helpers.store_child as child
child.serve()
names = ("RLIMIT_CPU", "RLIMIT_DATA")
limits = {name: resource.getrlimit(getattr(resource, name))[0] for name in names}
print(json.dumps(limits | {"torch": "torch" in sys.modules}))
"""


def test_requests_are_answered_line_by_line_under_limits(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5")
    fields = {"fields": {"x": "/images"}, "label": None, "values": {}, "groups": None}
    base = {"kind": "hdf5", "path": str(path), "out": str(tmp_path / "out"), "seconds": 100}
    wrong = fields | {"fields": {"x": "/none"}}
    requests = [{"request": fields}, {"request": wrong}, {"request": None}]
    lines = "".join(json.dumps(base | request) + "\n" for request in requests)
    done = run_python("-c", LIMITS, stdin=lines.encode(), timeout=120)
    found, missing, arrays, limits = map(json.loads, done.stdout.splitlines())
    assert found == {}
    assert open_table(tmp_path / "out", StoreContents).count == COUNT
    assert missing["error"].startswith("no array '/none' in it")
    assert missing["is_damaged"] is False
    assert len(arrays["arrays"]) == 2
    assert 100 < limits["RLIMIT_CPU"] < 200
    assert 0 < limits["RLIMIT_DATA"] < 1 << 40
    assert limits["torch"] is False
