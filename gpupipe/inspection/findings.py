"""Lists what is wrong with data sets: kinds of findings, each with its samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpupipe.inspection.duplicates import find_duplicates
from gpupipe.inspection.faults import KINDS, OF_PIXELS, Sample, find_faults
from gpupipe.inspection.scan import Scan
from gpupipe.inspection.statistics import describe

SCHEMA = "gpupipe-inspect-1"


@dataclass(frozen=True)
class Finding:
    """All samples with one kind of fault.

    Attributes:
        kind: One of KINDS.
        groups: Groups of samples that belong together, such as equal files; of one sample each for
            faults of single samples.
    """

    kind: str
    groups: Sequence[Sequence[Sample]]

    @property
    def count(self) -> int:
        """How many samples have the fault."""
        return sum(map(len, self.groups))


def find_all(scans: Sequence[Scan]) -> list[Finding]:
    """Return a finding of each kind that was looked for, in the order of KINDS, empty ones too."""
    groups: dict[str, list[Sequence[Sample]]] = {kind: [] for kind in list_kinds(scans)}
    for scan in scans:
        for kind, sample in find_faults(scan):
            groups[kind].append([sample])
    for kind, group in find_duplicates(scans) if "near" in groups else ():
        groups[kind].append(group)
    return [Finding(kind, found) for kind, found in groups.items()]


def list_kinds(scans: Sequence[Scan]) -> list[str]:
    """Return the kinds of findings that these scans can show."""
    has_pixels = not any(scan.headers_only for scan in scans)
    kinds = [kind for kind in KINDS if has_pixels or kind not in OF_PIXELS]
    return kinds if len(scans) > 1 else [kind for kind in kinds if kind != "leaks"]


def as_json(scans: Sequence[Scan], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return statistics and findings as plain JSON."""
    return {
        "schema": SCHEMA,
        "headers_only": any(scan.headers_only for scan in scans),
        "data": {scan.name: describe(scan) for scan in scans},
        "findings": {
            finding.kind: [list(map(_describe_sample, group)) for group in finding.groups]
            for finding in findings
        },
    }


def _describe_sample(sample: Sample) -> dict[str, Any]:
    return {
        "data": sample.scan.name,
        "id": int(sample.scan.ids[sample.row]),
        "path": sample.location,
        "label": sample.label,
        "why": sample.why,
    }
