"""Compiling for real, where a Triton is at hand: ``ULPSCOPE_TRITON`` names Python interpreters that have one.

    ULPSCOPE_TRITON=t371/bin/python:t380/bin/python ULPSCOPE_VLLM=FOLDER pytest -m slow tests/verify/lower

``FOLDER`` holds ``vllm/`` as in vLLM's wheel of 0.33.0; only two of its files are read.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specs.errors import FidelityError, InputError
from tests.verify.lower.test_trees import kept
from verify.lower.compile import compiled
from verify.lower.converge import converge, operations
from verify.lower.read import Reading, read
from verify.lower.request import wanted
from verify.lower.stages import Kernel, Lowering, load

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
EXAMPLE = ROOT / "verify" / "lower" / "examples" / "attention.py"
ARCHS = ("sm_90", "sm_100", "sm_120")
SCRIPT = """
import sys
from pathlib import Path
from verify.lower.compile import compiled
from verify.lower.stages import write
sys.path.insert(0, {here!r})
from {module} import KERNELS
write(compiled(Path({path!r}), KERNELS, {archs!r}, fp_fusion={fusion}), Path({out!r}))
"""


def interpreters() -> list[str]:
    return [p for p in os.environ.get("ULPSCOPE_TRITON", "").split(os.pathsep) if p]


def compiled_by(python: str, path: Path, module: str, out: Path, *, fusion: bool = True) -> Lowering:
    script = SCRIPT.format(
        here=str(HERE), module=module, path=str(path), archs=ARCHS, out=str(out), fusion=fusion
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, "-c", script], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return load(out)


@pytest.mark.slow
@pytest.mark.parametrize("python", interpreters() or [""])
def test_the_example_is_what_is_kept(python: str, tmp_path: Path) -> None:
    """Byte for byte, for the versions whose output the package keeps."""
    if not python:
        pytest.skip("ULPSCOPE_TRITON names no interpreter")
    found = compiled_by(python, EXAMPLE, "example_wanted", tmp_path / "a.lower.gz")
    assert found == kept(found.triton)


@pytest.mark.slow
@pytest.mark.parametrize("python", interpreters() or [""])
def test_without_fusion_nothing_is_fused(python: str, tmp_path: Path) -> None:
    """``enable_fp_fusion`` off: no FFMA in `merge`, and every product of the numerator is rounded."""
    if not python:
        pytest.skip("ULPSCOPE_TRITON names no interpreter")
    found = compiled_by(python, EXAMPLE, "example_wanted", tmp_path / "a.lower.gz", fusion=False)
    assert "fp fusion off" in found.coordinate()
    merge = found.kernels[1]
    for arch in ARCHS:
        reading = read(merge, arch)
        assert reading.counts.get("FFMA", 0) == 0
        by_role = {r.role: r for r in reading.reductions}
        assert not by_role["denominator"].contracted
        assert by_role["numerator"].products == "rounded"


@pytest.mark.slow
@pytest.mark.parametrize("python", interpreters() or [""])
def test_tall_tiles(python: str, tmp_path: Path) -> None:
    """64 rows: wgmma on sm_90, tcgen05 on sm_100, mma.sync on sm_120; TTGIR itself differs.

    On sm_120 a warp takes keys 8 w + (0..7) and 32 more: docs/kernels/vllm_triton.md has the same two orders of its terms.
    """
    if not python:
        pytest.skip("ULPSCOPE_TRITON names no interpreter")
    found = compiled_by(python, EXAMPLE, "tall_wanted", tmp_path / "t.lower.gz")
    (attend,) = found.kernels
    parted = converge(attend)
    assert (parted.last_common, parted.parted) == ("ttir", "ttgir")
    assert parted.layouts_differ
    reading = {a: read(attend, a) for a in ARCHS}
    start = {a: sorted({i.split(".")[0] for i in r.instructions}) for a, r in reading.items()}
    assert start == {"sm_90": ["wgmma"], "sm_100": ["tcgen05"], "sm_120": ["mma"]}
    assert any(
        d.instruction.startswith("HGMMA") and d.start == "+0" and d.ascending for d in reading["sm_90"].dots
    )
    total = next(r for r in reading["sm_120"].reductions if r.role == "tile_sum")
    assert total.nameless
    assert (
        total.brackets
        == {"3.7.1": "(((t0 + t1) + t2) + t3)", "3.8.0": "((t0 + t2) + (t1 + t3))"}[found.triton]
    )
    assert (total.lanes, total.warps, total.joined) == ((2, 1), (2, 1), "fma")


@pytest.mark.slow
@pytest.mark.parametrize("python", interpreters() or [""])
def test_vllm(python: str, tmp_path: Path) -> None:
    """vLLM 0.33.0, bf16, head_dim 128, 32 query heads on 8: as traced by hand, see docs/kernels/vllm_triton.md."""
    folder = os.environ.get("ULPSCOPE_VLLM", "")
    if not python or not (Path(folder) / "vllm" / "v1" / "attention" / "ops").is_dir() or not folder:
        pytest.skip("ULPSCOPE_TRITON or ULPSCOPE_VLLM is not given")
    found = compiled_by(python, HERE / "vllm_kernels.py", "vllm_wanted", tmp_path / "v.lower.gz")
    attention, reduce = found.kernels
    for arch in ARCHS:
        _attention(read(attention, arch))
    tree = {a: {r.role: r for r in read(reduce, a).reductions} for a in ARCHS}
    for arch in ARCHS:
        assert tree[arch]["denominator"].lanes == (8, 4, 2, 1)
        assert tree[arch]["denominator"].contracted
        assert tree[arch]["denominator"].columns == (4, 8, 16, 32, 64)
    trees = [tree[a]["numerator"].tree for a in ARCHS]
    parted = {k.name: converge(k) for k in found.kernels}
    if found.triton == "3.7.1":
        chain = "lanes(4, seq(fma, swap), butterfly())"
        assert trees == [chain, None, chain]
        assert (
            "((fma(t0, t1) + t2) + t3); fma(t3, fma(t2, fma(t0, t1)))" in tree["sm_100"]["numerator"].unread
        )
        assert _counts(reduce, "FFMA", "FADD") == [(13, 16), (11, 18), (13, 16)]
        assert [s.equal for s in parted["reduce_segments"].stages] == [True, True, True, False, False]
        assert [s.equal for s in parted["kernel_unified_attention"].stages] == [True, True, True, True, False]
    elif found.triton == "3.8.0":
        pairs = "lanes(4, pairwise(fma), butterfly())"
        assert trees == [pairs, "lanes(4, pairwise(), butterfly())", pairs]
        assert _counts(reduce, "FFMA", "FADD2") == [(9, 0), (1, 8), (9, 0)]
        for one in parted.values():
            by = {s.stage: s for s in one.stages}
            assert (one.last_common, one.parted) == ("ttgir", "llir")
            assert by["llir"].groups == (("sm_90",), ("sm_100", "sm_120"))
    assert all("does not hold" in one.claim for one in parted.values())


def _attention(found: Reading) -> None:
    """QK: 8 HMMA in a chain from 0, S = fma(scale, dot, 0); PV from acc * alpha; L = fma(L, alpha, l)."""
    assert {(d.count, d.length, d.start, d.scaled) for d in found.dots} == {
        (1, 8, "+0", "fma"),
        (4, 1, "product", ""),
    }
    total = next(r for r in found.reductions if r.role == "tile_sum")
    assert total.tree == "chunks(8, chunks(2, seq(), butterfly(2, 1)), butterfly())"
    assert total.joined == "fma"
    assert set(found.exponentials) == {"triton.exp"}


def _counts(kernel: Kernel, *names: str) -> list[tuple[int, ...]]:
    found = [operations("sass", kernel.stages[a].sass) for a in ARCHS]
    return [tuple(f[n] for n in names) for f in found]


@pytest.mark.slow
def test_a_file_that_fails_is_the_users_to_mend(tmp_path: Path) -> None:
    """The command: the file raises, prints, ends the process, or does not compile; and one that does."""
    if not interpreters():
        pytest.skip("ULPSCOPE_TRITON names no interpreter")
    path = tmp_path / "kernel.py"
    head = "import triton\nimport triton.language as tl\n"
    kernel = "@triton.jit\ndef f(X):\n    tl.store(X, {})\n"
    for text, code, part in (
        (head + kernel + "raise ValueError('mine')\n", 2, "the file does not run here: ValueError: mine"),
        (head + kernel + "import os\nos._exit(7)\n", 2, "the compiling process ended with 7"),
        (head + kernel.format("nothing"), 2, "Triton does not compile f for sm_90"),
        (head + kernel.format(1) + "f = 3\n", 2, "f is no kernel"),
        (head + kernel.format(1) + "print('{not JSON')\n", 0, '"claim": "needs two architectures"'),
    ):
        path.write_text(text)
        done = subprocess.run(
            [
                interpreters()[0],
                "-c",
                "from reports.main import main; main()",
                "lower",
                str(path),
                "--signature",
                "*fp32",
                "--arch",
                "sm_90",
                "--format",
                "json",
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert part in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_the_worker_is_given_what_was_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Triton: its variables stay here, the process is another one, and a refusal is passed on."""
    import json

    from verify.lower import compile as compiling

    seen: dict[str, object] = {}

    def run(command: list[str], **given: object) -> subprocess.CompletedProcess[str]:
        request = json.loads(str(given["input"]))
        seen.update(request, command=command, env=given["env"])
        Path(request["out"]).write_text(json.dumps({"refused": "it will not"}))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(compiling, "find_spec", lambda name: object())
    monkeypatch.setattr(compiling.subprocess, "run", run)
    (first, _) = kernels = wanted(EXAMPLE)
    with pytest.raises(InputError, match="it will not"):
        compiled(EXAMPLE, kernels, ["sm_90"], fp_fusion=False)
    assert seen["command"] == [sys.executable, "-P", "-m", "verify.lower.worker"]
    assert isinstance(seen["env"], dict)
    assert "TRITON_INTERPRET" not in seen["env"]
    assert (seen["fp_fusion"], seen["archs"]) == (False, ["sm_90"])
    assert first.constexprs == {"ROWS": 16, "TILE": 16, "DIM": 64}


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    from verify.lower import compile as compiling

    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    with pytest.raises(FidelityError, match="Triton is not installed"):
        compiled(EXAMPLE, [], [])
