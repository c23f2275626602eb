"""What starts fast stays fast: commands that need no arithmetic do not import it.

Seconds are measured by benchmarks/bench_startup.py; here it is only asserted what they hang on.
"""

import json
import subprocess
import sys

import pytest

HEAVY = {"jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "flint", "plotly", "jinja2", "rich", "safetensors"}
SCRIPT = """
import json, sys
from reports.main import main
sys.argv = ["ulpscope", *json.loads(sys.argv[1])]
try:
    main()
    code = 0
except SystemExit as stop:
    code = stop.code or 0
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def loaded(*arguments: str) -> set[str]:
    """The top-level modules that a run of the command leaves in sys.modules."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    return set(modules)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("spec", "--help"),
        ("emulate", "--help"),
        ("report", "--help"),
        ("predict", "--help"),
        ("compare", "--help"),
        ("capture", "kernels", "--help"),
        ("spec", "check", "walkthrough.triton", "xqa.decode"),
        ("spec", "list"),
        ("spec", "diff", "walkthrough.triton", "walkthrough.xqa"),
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported(arguments):
    found = loaded(*arguments)
    assert "specs" in found
    assert not found & HEAVY


def test_a_plan_needs_no_compiler():
    found = loaded("plan", "walkthrough.xqa", "--platform", "h200", "--kv-len", "4097")
    assert "numpy" in found
    assert not found & {"jax", "jaxlib", "plotly"}
