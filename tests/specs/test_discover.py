"""Which file a name means: the order of the folders, hidden files, and packages that are never imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specs import SpecError, load_spec
from specs.discover import Found, every, resolve

GOOD = """\
schema  = 1
name    = "my.spec"
status  = "read"
summary = "a test"
[numbers]
compute = "f32"
inputs  = { q = "bf16", k = "bf16", v = "bf16" }
[levels]
tile = "tiles(64)"
[row]
output = "sum(v, seq())"
"""


def write(path: Path, name: str, text: str = GOOD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("my.spec", name))
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that announces a folder of specs and must not be imported."""
    site = tmp_path / "site"
    package = site / "acme_kernels_for_test"
    write(package / "specs" / "acme.one.toml", "acme.one")
    write(package / "specs" / "walkthrough.xqa.toml", "walkthrough.xqa")
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "specs" / "__init__.py").write_text("raise SystemExit('imported')")
    info = site / "acme_kernels_for_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-kernels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ulpscope.specs]\nacme = acme_kernels_for_test.specs\nbroken = no_such_package_for_test.specs\n"
        "odd = acme_kernels_for_test.specs.nowhere\n"
    )
    monkeypatch.syspath_prepend(str(site))
    return package


def test_a_path_is_a_path(here: Path) -> None:
    write(here / "a.toml", "my.spec")
    assert load_spec("a.toml").name == "my.spec"
    assert load_spec("./a.toml").name == "my.spec"
    assert load_spec(here / "a.toml").name == "my.spec"
    assert resolve("x/y").kind == "path"


def test_the_library(here: Path) -> None:
    found = resolve("walkthrough.xqa")
    assert found.kind == "library"
    assert found.shadows == ()
    assert found.warning == ""


def test_specs_d_comes_before_the_library_and_says_so(here: Path) -> None:
    mine = write(here / "specs.d" / "walkthrough.xqa.toml", "walkthrough.xqa")
    found = resolve("walkthrough.xqa")
    assert found.path.resolve() == mine
    assert len(found.shadows) == 1
    assert found.shadows[0].parent.name == "library"
    spec = load_spec("walkthrough.xqa")
    assert list(spec.levels) == ["tile"]
    assert len(spec.warnings) == 1
    assert "specs.d/walkthrough.xqa.toml hides" in spec.warnings[0]


def test_a_spec_may_extend_the_one_that_it_hides(here: Path) -> None:
    text = 'schema=1\nname="walkthrough.xqa"\nstatus="read"\nsummary="mine"\nextends="walkthrough.xqa"\n'
    write(here / "specs.d" / "walkthrough.xqa.toml", "", text)
    spec = load_spec("walkthrough.xqa")
    assert spec.file.summary == "mine"
    assert list(spec.levels) == ["group"]


def test_a_spec_that_extends_itself_alone_is_a_circle(here: Path) -> None:
    write(here / "specs.d" / "me.toml", "", 'schema=1\nname="me"\nstatus="read"\nsummary=""\nextends="me"\n')
    with pytest.raises(SpecError, match="extends itself"):
        load_spec("me")


def test_file_and_name_must_agree_in_a_folder(here: Path) -> None:
    write(here / "specs.d" / "other.toml", "my.spec")
    with pytest.raises(SpecError, match=r"other\.toml:2:12: the file is called other but holds 'my\.spec'"):
        load_spec("other")


def test_an_unknown_name_suggests_one(here: Path) -> None:
    write(here / "specs.d" / "acme.decode.toml", "acme.decode")
    with pytest.raises(SpecError, match=r"unknown spec 'acme\.decod'\n  did you mean 'acme\.decode'\?"):
        load_spec("acme.decod")
    with pytest.raises(SpecError, match=r"unknown spec '\.\.'"):
        load_spec("..")


def test_installed_packages_come_last_and_are_not_imported(here: Path, plugin: Path) -> None:
    found = resolve("acme.one")
    assert found == Found("acme.one", plugin / "specs" / "acme.one.toml", "acme-kernels")
    assert load_spec("acme.one").name == "acme.one"
    assert resolve("walkthrough.xqa").kind == "library"
    listed = {f.name: f for f in every()}
    assert listed["acme.one"].kind == "acme-kernels"
    assert listed["walkthrough.xqa"].shadows == (plugin / "specs" / "walkthrough.xqa.toml",)
    assert not any(name.startswith("acme_kernels_for_test") for name in sys.modules)


def test_every_kind_has_names() -> None:
    assert [f.name for f in every("platform")] == [
        "a100",
        "amd_avx512",
        "b200",
        "h100",
        "h100_pcie",
        "h200",
        "l40s",
        "rtx4090",
        "rtx5090",
        "sm120",
        "t4",
        "v100",
    ]
    assert [f.name for f in every("model")] == ["qwen", "smollm2_135m"]
    assert [f.name for f in every("workload")] == ["agent_session"]
