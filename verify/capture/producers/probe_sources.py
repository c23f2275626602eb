"""CUDA C of the probes, compiled at run time where a GPU is: the model of the function unit, its sweep, and the
matrix instructions. The model compiles as C++ for a CPU, too, which tests use.
"""

from __future__ import annotations

from verify.numerics.mufu_tables import SEGMENTS, coefficients

SPAN = 1 << 23
"""Operands of one checksum."""
BLOCKS = (1 << 32) // SPAN
KEPT = 1000
"""Mismatches that are kept, first come."""

#: What MUFU does: see `verify.numerics.mufu`. ``UNKNOWN`` marks operands whose result is not known.
MODEL = r"""
#ifdef __CUDACC__
#define BOTH __host__ __device__ static inline
#define TABLE __device__ static const
#else
#define BOTH static inline
#define TABLE static const
#endif
typedef unsigned int word;
typedef unsigned long long wide;
#define NANW 0x7FFFFFFFu
#define INFW 0x7F800000u
#define NORMAL 0x00800000u
#define FRACTION 0x007FFFFFu
#define SIGN 0x80000000u
#define UNKNOWN 0x7FC0DEADu

BOTH wide square_of(word r) {
  word total = 0;
  for (int i = 0; i < 17; i++) if (r >> i & 1) total += r >> (18 - i);
  return total >> 1;
}
BOTH word model_ex2(word x) {
  word magnitude = x & ~SIGN;
  if (magnitude > INFW) return NANW;
  int exponent = (int)(magnitude >> 23) - 127;
  word significand = (magnitude & FRACTION) | NORMAL, fixed;
  if (exponent >= 7) return x & SIGN ? 0u : INFW;
  if (exponent >= 0) fixed = significand << exponent;
  else fixed = -exponent > 31 ? 0u : significand >> -exponent;
  long long value = fixed;
  if (x & SIGN) value = fixed & FRACTION ? -(long long)fixed - 1 : -(long long)fixed;
  long long whole = value >> 23;
  word fraction = (word)(value & FRACTION), r = fraction & 0x1FFFF;
  const int *c = table_ex2[fraction >> 17];
  long long part = ((long long)c[0] << 13) + (long long)c[1] * r + (long long)c[2] * (long long)square_of(r) + 0x77E2;
  long long result = ((whole + 126) * (long long)NORMAL) + (part >> 15);
  if (result < (long long)NORMAL) return 0u;
  return result > (long long)INFW ? INFW : (word)result;
}
BOTH word model_rcp(word x) {
  word sign = x & SIGN, magnitude = x & ~SIGN;
  if (magnitude > INFW) return NANW;
  if (magnitude < NORMAL) return sign | INFW;
  if (magnitude == INFW) return sign;
  word fraction = magnitude & FRACTION, r = fraction & 0xFFFF;
  const int *c = table_rcp[fraction >> 16];
  long long part = ((long long)c[0] << 13) + (long long)c[1] * r + (long long)c[2] * (long long)square_of(r << 1) + 0x47E7;
  long long result = (252 - (long long)(magnitude >> 23)) * (long long)NORMAL + (part >> 15);
  return result < (long long)NORMAL ? sign : sign | (word)result;
}
BOTH word model_rsq(word x) {
  word magnitude = x & ~SIGN;
  if (magnitude > INFW) return NANW;
  if (x & SIGN) return UNKNOWN;
  if (magnitude < NORMAL) return INFW;
  if (magnitude == INFW) return 0u;
  int exponent = (int)(magnitude >> 23) - 127;
  int odd = exponent & 1, half = (exponent - odd) / 2;
  word fraction = magnitude & FRACTION, r = fraction & 0x1FFFF;
  if (!odd && !fraction) return (word)(127 - half) << 23;
  const int *c = table_rsq[64 * odd + (int)(fraction >> 17)];
  long long part = ((long long)c[0] << 14) + (long long)c[1] * r + ((long long)c[2] * (long long)square_of(r) * 4) + 0x7FFF;
  return (word)((125 - half) * (long long)NORMAL + (part >> 16));
}
BOTH word model_lg2(word x) {
  word magnitude = x & ~SIGN;
  if (magnitude > INFW) return NANW;
  if (x & SIGN) return UNKNOWN;
  if (magnitude < NORMAL) return SIGN | INFW;
  if (magnitude == INFW) return INFW;
  if (magnitude == 0x3F800000u) return 0u;
  word fraction = magnitude & FRACTION, r = fraction & 0x1FFFF;
  const int *c = table_lg2[fraction >> 17];
  long long part = ((long long)c[0] << 12) + (long long)c[1] * r + ((long long)c[2] * (long long)square_of(r) * 2) + 0x3345;
  long long total = (part >> 2) + ((long long)(magnitude >> 23) - 127) * (1LL << 36);
  word sign = 0;
  if (total < 0) { sign = SIGN; total = ~total; }
  int length = 0;
  for (long long t = total; t; t >>= 1) length++;
  int place = length - 24;
  long long significand = place >= 0 ? total >> place : total << -place;
  return sign | (word)((place - 36 + 149) * (long long)NORMAL + significand);
}
BOTH float number_of(word x) { union { word w; float f; } u; u.w = x; return u.f; }
BOTH word word_of(float x) { union { word w; float f; } u; u.f = x; return u.w; }
BOTH word times(word x, float y) { return word_of(number_of(x) * y); }
BOTH word model_ex2_full(word x) {
  if (!(number_of(x) < -126.0f)) return model_ex2(x);
  word root = model_ex2(times(x, 0.5f));
  return times(root, number_of(root));
}
BOTH word model_rcp_full(word x) {
  word magnitude = x & ~SIGN;
  float scale = magnitude > 0x7E800000u ? 0.25f : magnitude < NORMAL ? 16777216.0f : 1.0f;
  return magnitude > INFW ? NANW : times(model_rcp(times(x, scale)), scale);
}
BOTH word model_rsq_full(word x) {
  if ((x & ~SIGN) >= NORMAL || x & SIGN) return model_rsq(x);
  return times(model_rsq(times(x, 16777216.0f)), 4096.0f);
}
BOTH word model_lg2_full(word x) {
  if ((x & ~SIGN) >= NORMAL || x & SIGN) return model_lg2(x);
  return word_of(number_of(model_lg2(times(x, 16777216.0f))) + -24.0f);
}
"""

SWEEP = r"""
__device__ static inline word unit_NAME(word x) {
  word y;
  asm volatile("INSTRUCTION %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
extern "C" __global__ void sweep_NAME(wide *sums, unsigned *counts, unsigned *unknown, unsigned *kept, unsigned *total) {
  word range = blockIdx.x / 64, part = blockIdx.x % 64, wrong = 0, blank = 0;
  wide sum = 0;
  for (word i = threadIdx.x; i < (1u << 17); i += blockDim.x) {
    word at = part << 17 | i, x = range << 23 | at;
    word hardware = unit_NAME(x), model = model_NAME(x);
    sum += (wide)hardware * (2ull * at + 1ull);
    if (model == UNKNOWN) { blank++; continue; }
    bool both = (hardware & ~SIGN) > INFW && (model & ~SIGN) > INFW;
    if (hardware == model || both) continue;
    wrong++;
    word slot = atomicAdd(total, 1u);
    if (slot < KEPT) { kept[3 * slot] = x; kept[3 * slot + 1] = hardware; kept[3 * slot + 2] = model; }
  }
  atomicAdd(sums + range, sum);
  if (wrong) atomicAdd(counts + range, wrong);
  if (blank) atomicAdd(unknown + range, blank);
}
"""

_MNEMONICS = {"ex2": "ex2", "rcp": "rcp", "rsq": "rsqrt", "lg2": "lg2"}
#: By name of the model; ``_full``: the form without .ftz.
INSTRUCTIONS = {name: f"{word}.approx.ftz.f32" for name, word in _MNEMONICS.items()} | {
    f"{name}_full": f"{word}.approx.f32" for name, word in _MNEMONICS.items()
}


def model_source() -> str:
    """The model with its tables: C++ for a CPU, CUDA for a GPU."""
    tables = ""
    for name in SEGMENTS:
        rows = ", ".join("{%d, %d, %d}" % row for row in coefficients(name))  # noqa: UP031 (braces)
        tables += f"TABLE int table_{name}[{SEGMENTS[name]}][3] = {{{rows}}};\n"
    head, _, rest = MODEL.partition("typedef unsigned int word;")
    return f"{head}{tables}typedef unsigned int word;{rest}"


def sweep_source(name: str) -> str:
    """The sweep of one function, ``sweep_NAME``: grid ``64 * BLOCKS``, 256 threads."""
    text = SWEEP.replace("INSTRUCTION", INSTRUCTIONS[name]).replace("NAME", name).replace("KEPT", str(KEPT))
    return model_source() + text


#: PTX name, terms, bytes of a factor, and whether the accumulator is f16: every row of A and B is 32 bytes.
MMA: dict[str, tuple[str, int, int, bool]] = {
    "bf16": ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, 2, False),
    "f16": ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, 2, False),
    "f16_f16": ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", 16, 2, True),
    "tf32": ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 8, 4, False),
    "e4m3fn": ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", 32, 1, False),
    "e5m2": ("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32", 32, 1, False),
}
WGMMA: dict[str, tuple[str, int, int, bool]] = {
    "bf16": ("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", 16, 2, False),
    "f16": ("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", 16, 2, False),
    "e4m3fn": ("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", 32, 1, False),
    "e5m2": ("wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e5m2", 32, 1, False),
}
MATRIX = {"mma": MMA, "wgmma": WGMMA}
PARTS: dict[str, tuple[str, ...]] = {"mufu": (*INSTRUCTIONS,), "mma": (*MMA,), "wgmma": (*WGMMA,)}
"""What each probe asks, one after the other."""

_F32 = r"""
extern "C" __global__ void probe(const unsigned *a, const unsigned *b, const unsigned *c, unsigned *d) {
  a += blockIdx.x * 128; b += blockIdx.x * 64; c += blockIdx.x * 128; d += blockIdx.x * 128;
  int g = threadIdx.x >> 2, t = threadIdx.x & 3, low = 8 * g + 2 * t, high = 8 * (g + 8) + 2 * t;
  unsigned a0 = a[8 * g + t], a1 = a[8 * (g + 8) + t], a2 = a[8 * g + t + 4], a3 = a[8 * (g + 8) + t + 4];
  unsigned b0 = b[8 * g + t], b1 = b[8 * g + t + 4], d0, d1, d2, d3;
  asm volatile("INSTRUCTION {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
    : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3)
    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[low]), "r"(c[low + 1]), "r"(c[high]), "r"(c[high + 1]));
  d[low] = d0; d[low + 1] = d1; d[high] = d2; d[high + 1] = d3;
}
"""
_F16 = r"""
extern "C" __global__ void probe(const unsigned *a, const unsigned *b, const unsigned *c, unsigned *d) {
  a += blockIdx.x * 128; b += blockIdx.x * 64; c += blockIdx.x * 64; d += blockIdx.x * 64;
  int g = threadIdx.x >> 2, t = threadIdx.x & 3;
  unsigned a0 = a[8 * g + t], a1 = a[8 * (g + 8) + t], a2 = a[8 * g + t + 4], a3 = a[8 * (g + 8) + t + 4];
  unsigned b0 = b[8 * g + t], b1 = b[8 * g + t + 4], d0, d1;
  asm volatile("INSTRUCTION {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%9};"
    : "=r"(d0), "=r"(d1)
    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[4 * g + t]), "r"(c[4 * (g + 8) + t]));
  d[4 * g + t] = d0; d[4 * (g + 8) + t] = d1;
}
"""
#: Four problems of 16 rows share B in shared memory: two core matrices of 8 rows of 16 bytes, 128 bytes apart.
_WGMMA = r"""
extern "C" __global__ void probe(const unsigned *a, const unsigned *b, const unsigned *c, unsigned *d) {
  __shared__ __align__(128) unsigned shared[64];
  a += blockIdx.x * 512; b += blockIdx.x * 64; c += blockIdx.x * 512; d += blockIdx.x * 512;
  if (threadIdx.x < 64) {
    int n = threadIdx.x / 8, k = threadIdx.x % 8;
    shared[k / 4 * 32 + n * 4 + k % 4] = b[threadIdx.x];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = 16 * warp + (lane >> 2), t = lane & 3;
  int low = 8 * g + 2 * t, high = 8 * (g + 8) + 2 * t;
  unsigned a0 = a[8 * g + t], a1 = a[8 * (g + 8) + t], a2 = a[8 * g + t + 4], a3 = a[8 * (g + 8) + t + 4];
  float d0 = __uint_as_float(c[low]), d1 = __uint_as_float(c[low + 1]);
  float d2 = __uint_as_float(c[high]), d3 = __uint_as_float(c[high + 1]);
  unsigned place;
  asm volatile("{ .reg .u64 p; cvta.to.shared.u64 p, %1; cvt.u32.u64 %0, p; }" : "=r"(place) : "l"(shared));
  unsigned long long desc = (unsigned long long)((place & 0x3FFFF) >> 4) | (8ull << 16) | (8ull << 32);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("INSTRUCTION {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1LAST;"
    : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(desc));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  d[low] = __float_as_uint(d0); d[low + 1] = __float_as_uint(d1);
  d[high] = __float_as_uint(d2); d[high + 1] = __float_as_uint(d3);
}
"""


def matrix_source(instruction: str, name: str) -> str:
    """``probe``: one warp a problem of 16 x 8 (mma), or four warps for four of them that share B (wgmma)."""
    text, _, size, half = MATRIX[instruction][name]
    body = _WGMMA if instruction == "wgmma" else (_F16 if half else _F32)
    return body.replace("INSTRUCTION", text).replace("LAST", ", 0" if size == 2 else "")
