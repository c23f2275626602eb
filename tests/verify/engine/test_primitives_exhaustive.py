"""Every f32 input of exp, exp2 and log, in both f32 carriers: some minutes for each function on two cores."""

import jax
import numpy as np
import pytest

from specs.formats import BASES
from verify.engine.primitives import F32, ZERO, F32Exact, x64
from verify.numerics import elementary

F = BASES["f32"]
CHUNK = 1 << 22


def chunks():
    """All words whose f32 is not NaN, positive then negative."""
    for start in range(0, 1 << 32, CHUNK):
        if start & 0x7FFFFFFF <= 0x7F800000:
            yield np.arange(start, min(start + CHUNK, (start & 0x80000000) + 0x7F800001), dtype=np.uint32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exp", "exp2", "log"])
def test_every_f32_input(name):
    @jax.jit
    def run(zero, words):
        f, e = F32(zero), F32Exact(zero)
        fast = getattr(f, name)(f.decode(words, F))
        return f.encode(fast), e.encode(getattr(e, name)(e.decode(words, F)))

    def small(words):
        return (words & np.uint32(0x7FFFFFFF)) - np.uint32(1) < np.uint32(0x7FFFFF)

    seen = 0
    for words in chunks():
        x = words.view(np.float32)
        want = getattr(elementary, f"{name}_f32")(x)
        nan = np.isnan(want)
        want = want.view(np.uint32)
        with x64():
            fast, exact = (np.asarray(v) for v in run(ZERO, words))
        assert np.all((exact == want) | nan), hex(words[np.flatnonzero((exact != want) & ~nan)[0]])
        normal = ~small(words) & ~small(want) & ~nan
        assert np.all((fast == want) | ~normal), hex(words[np.flatnonzero((fast != want) & normal)[0]])
        seen += words.size
    assert seen == 2 * 0x7F800001
