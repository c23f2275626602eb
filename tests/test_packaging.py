"""The wheel: every data file is in it, nothing else is, and it works from there."""

import os
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def files_of(*packages: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


def packages() -> list[str]:
    return [name for name in ("specs", "verify", "search", "reports") if (ROOT / name).is_dir()]


def test_it_holds_the_packages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.partition("/")[0].endswith(".dist-info")}
        damaged = archive.testzip()
    assert damaged is None
    assert names == files_of(*packages())
    kinds = {Path(name).suffix for name in names}
    assert {".py", ".toml", ".json", ".typed", ".safetensors", ".j2", ".css", ".js", ".md"} <= kinds
    assert {f"{name}/py.typed" for name in packages()} <= names


def test_metadata_says_licence_python_and_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {n.partition("/")[0] for n in archive.namelist() if ".dist-info" in n}
        about = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        licence = archive.read(f"{folder}/licenses/LICENSE").decode()
        entries = archive.read(f"{folder}/entry_points.txt").decode()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert about["Name"] == "ulpscope"
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.11"
    assert "ulpscope = reports.main:main" in entries
    assert "Apache License" in licence
    required = [r for r in about.get_all("Requires-Dist", []) if "extra ==" not in r]
    assert len(required) == len(declared["dependencies"])


def test_it_works_from_the_wheel_alone(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (
        "import specs, verify, reports\n"
        "from specs import load_spec, load_platform, load_model, load_workload, load_requested\n"
        "print(specs.__file__)\n"
        "print(load_spec('xqa.decode').name, load_platform('sm120').sm_count, load_model('qwen').q_heads)\n"
        "print(len(load_workload('agent_session').ranges), sorted(load_requested())[0])\n"
        "from reports.inputs import smollm2_layer\n"
        "print(smollm2_layer().k.shape[1:])\n"
    )
    work = tmp_path / "elsewhere"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert Path(first).is_relative_to(tmp_path / "site")
    assert rest == ["xqa.decode 188 24", "22 dense", "(3, 64)"]


def test_the_lock_holds_what_the_project_declares():
    """Every requirement and every one of the dev extra is pinned; no line names a file or an index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    lines = [line for line in (ROOT / "requirements-dev.lock").read_text().splitlines() if line[:1] != "#"]
    pinned = dict(line.split("==") for line in lines)

    def canonical(name: str) -> str:
        return name.lower().replace("_", "-").split("[")[0]

    known = {canonical(name): version for name, version in pinned.items()}
    for requirement in wanted:
        name, _, low = requirement.partition(">=")
        version = known[canonical(name)]
        assert [int(x) for x in version.split(".")[:2]] >= [int(x) for x in low.split(".")[:2]], requirement
    assert not [line for line in lines if "/" in line or "@" in line or line.startswith("-")]
