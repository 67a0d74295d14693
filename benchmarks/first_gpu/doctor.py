"""What `gpupipe doctor` finds."""

from dataclasses import asdict

import part


def main() -> None:
    arguments = part.options(__doc__).parse_args()
    part.prepare(arguments)
    result = part.Part("doctor", arguments)
    from gpupipe.doctor.checks import run_checks

    findings = run_checks()
    result.figures(findings=[asdict(f) for f in findings])
    for f in findings:
        if f.status == "problem":
            result.check(f.subject, False, f"{f.observation}: {f.advice}")
    warnings = [f.subject for f in findings if f.status == "warning"]
    problems = [f.subject for f in findings if f.status == "problem"]
    result.headline(
        f"{len(findings)} findings, problems: {', '.join(problems) or 'none'}, "
        f"warnings: {', '.join(warnings) or 'none'}"
    )
    result.finish()


if __name__ == "__main__":
    main()
