import configparser
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from gpupipe.doctor import CheckResult, software_checks
from gpupipe.runtime.installation import list_requirements

REBUILD = "pip install --force-reinstall --no-deps ."


def test_least_versions_are_those_of_the_metadata():
    required = metadata.requires("gpupipe-loader") or []
    for name, least in software_checks.NEEDS.items():
        assert any(r.partition(";")[0].replace(" ", "") == f"{name}>={least}" for r in required), (
            name
        )


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 10, 18), "problem"), ((3, 11, 0), "ok"), ((3, 13, 9), "ok"), ((3, 14, 0), "problem")],
)
def test_python(version, status):
    assert software_checks.judge_python(version).status == status


def test_the_oldest_python_is_that_of_the_package():
    text = (Path(__file__).parents[2] / "setup.cfg").read_text()
    oldest = ".".join(map(str, software_checks.PYTHONS[0]))
    assert f"python_requires = >={oldest}\n" in text


@pytest.mark.parametrize(
    ("name", "version", "status"),
    [
        ("torch", None, "problem"),
        ("torch", "2.9.1", "problem"),
        ("torch", "2.11.0+cu130", "ok"),
        ("torch", "2.101.0", "ok"),
        ("torchvision", "0.9.0", "problem"),
        ("torchvision", "0.26.0", "ok"),
    ],
)
def test_package(name, version, status):
    finding = software_checks.judge_package(name, version)
    assert (finding.subject, finding.status) == (name, status)
    assert (finding.advice == f"pip install '{name}>={software_checks.NEEDS[name]}'") == (
        status == "problem"
    )


@pytest.mark.parametrize(
    ("packages", "status", "advice"),
    [
        ({}, "problem", "pip install 'nvidia-dali-cuda120>=2.4'"),
        ({"nvidia-dali-cuda120": "2.4.0"}, "ok", ""),
        ({"nvidia-dali-cuda130": "2.10.1"}, "ok", ""),
        ({"nvidia-dali-cuda130": "2.3.0"}, "problem", "pip install 'nvidia-dali-cuda130>=2.4'"),
        ({"nvidia-dali-cuda110": "1.40.0"}, "problem", "pip install 'nvidia-dali-cuda110>=2.4'"),
        (
            {"nvidia-dali-cuda120": "2.4.0", "nvidia-dali-cuda130": "2.4.0"},
            "problem",
            "uninstall all and install one: pip uninstall -y nvidia-dali-cuda120 "
            "nvidia-dali-cuda130; pip install nvidia-dali-cuda120",
        ),
    ],
)
def test_dali(packages, status, advice):
    finding = software_checks.judge_dali(packages, has_gpu=True)
    assert (finding.subject, finding.status, finding.advice) == ("DALI", status, advice)
    on_cpu = software_checks.judge_dali(packages, has_gpu=False)
    assert on_cpu.status == (status if packages else "ok")


@pytest.mark.parametrize(
    ("requires", "torch_version", "problems"),
    [
        (["numpy", "torch==2.6.0", "pillow"], "2.6.0+cu124", 0),
        (["torch (==2.6.0)"], "2.7.0", 1),
        (["torch (>=2.14.0)"], "2.15.0", 0),
        (["torch (>=2.14.0)"], "2.6.0", 1),
        (["torch==2.6.0"], None, 0),
        (["torchdata==0.1", "numpy"], "2.6.0", 0),
    ],
)
def test_torchvision_fits_torch(requires, torch_version, problems):
    assert [f.status for f in software_checks.judge_torch_pair(requires, torch_version)] == [
        "problem"
    ] * problems


def test_packages_of_extras():
    requires = [
        "numpy>=1.26",
        "pyzmq>=26; extra == 'server'",
        'msgspec>=0.19; extra == "server"',
        "pyarrow>=17; extra == 'parquet'",
        "nvidia-dali-cuda120>=2.4; sys_platform == 'linux' and extra == 'cuda12'",
        "pytest; extra == 'test'",
    ]
    assert list_requirements(requires, "server") == ["pyzmq>=26", "msgspec>=0.19"]
    assert list_requirements(requires, "parquet,cuda12") == [
        "pyarrow>=17",
        "nvidia-dali-cuda120>=2.4",
    ]


def test_every_extra_that_users_install_is_told():
    settings = configparser.ConfigParser()
    settings.read(Path(__file__).parents[2] / "setup.cfg")
    others = {"cuda12", "cuda13", "test", "docs", "lint"}
    extras = set(settings["options.extras_require"])
    assert extras - others == set(software_checks.EXTRAS)


def test_extras_that_are_not_complete_are_one_row_with_one_command():
    found = {
        "heic": {"pillow-heif": None},
        "server": {"pyzmq": "26.1", "msgspec": None},
        "parquet": {"pyarrow": "20"},
    }
    complete, missing = software_checks.judge_extras(found, "pip install '.[{}]'".format)
    assert complete == CheckResult("extra parquet", "pyarrow 20")
    assert (missing.subject, missing.status) == ("missing extras", "ok")
    assert missing.observation == "2"
    assert "heic (pillow-heif: for images in HEIC), server (msgspec: for" in missing.advice
    assert missing.advice.endswith("pip install '.[heic,server]'")


def test_kernels_say_what_they_run_on_or_what_to_install():
    built = software_checks.judge_kernels(["avx2", "scalar"], False, REBUILD)
    assert built.observation.endswith("with avx2")
    assert "unset GPUPIPE_KERNELS" in software_checks.judge_kernels(None, True, REBUILD).advice
    missing = software_checks.judge_kernels(None, False, REBUILD)
    assert (missing.status, "g++" in missing.advice) == ("ok", True)
    assert missing.advice.endswith(REBUILD)


@pytest.mark.parametrize(
    ("judge", "package"),
    [
        (software_checks.judge_region_decoding, "libjpeg-dev"),
        (software_checks.judge_png_decoding, "libpng-dev"),
    ],
)
def test_a_decoder_says_what_to_install(judge: Any, package: str):
    assert judge(True, False, REBUILD).advice == ""
    assert "unset GPUPIPE_KERNELS" in judge(False, True, REBUILD).advice
    missing = judge(False, False, REBUILD)
    assert (missing.status, package in missing.advice) == ("ok", True)
    assert missing.advice.endswith(REBUILD)
