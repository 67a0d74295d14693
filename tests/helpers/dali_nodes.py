"""Looks at DALI's graphs as nodes, for which no GPU is needed."""

from collections.abc import Callable
from typing import Any

from nvidia.dali import backend


def operators(node: Any) -> list[Any]:
    """The operators that make a node, without the sources of data."""
    found, waiting = {}, [node.source]
    while waiting:
        operator = waiting.pop()
        if hasattr(operator, "inputs") and id(operator) not in found:
            found[id(operator)] = operator
            waiting += [made.source for made in operator.inputs or []]
    return [op for op in found.values() if not op.name.startswith("__ExternalSource")]


def graph_of(tracer: Any, node: Any, feed: Callable[[Any], Any]) -> Any:
    """The node of what a tracer traced; `feed` returns the node of each array that is fed."""
    subgraph = tracer.subgraph()
    return subgraph.add_to(node, map(feed, subgraph.arrays))


def check_runs_on_gpu(node: Any) -> None:
    """Assert that operators on pixels run on a GPU. Arguments and their arithmetic stay on the
    CPU.
    """
    assert node.device == "gpu"
    for operator in operators(node):
        spec = operator.spec
        if spec.OutputDevice(0) == "gpu" and not operator.name.startswith("__Copy"):
            inputs = {spec.InputDevice(n) for n in range(spec.NumRegularInput())}
            assert inputs <= {"gpu"}, operator.name
            schema = backend.GetSchema(operator._op.schema_name)
            assert "gpu" in schema.GetSupportedBackends(), operator.name
