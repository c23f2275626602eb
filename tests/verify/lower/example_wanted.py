"""The kernels of the example, as its file says."""

from pathlib import Path

import verify.lower
from verify.lower.request import wanted

KERNELS = wanted(Path(verify.lower.__file__).parent / "examples" / "attention.py")
