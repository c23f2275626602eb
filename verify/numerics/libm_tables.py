"""Constants of glibc's expf and logf, of PyTorch's fexp_u20, of CUDA's expf and logf, and of FlashAttention-4's exp2.

Data that both walkers read. Sources: glibc 2.28 to 2.40, sysdeps/ieee754/flt-32/{e_exp2f_data,e_logf_data}.c (figures of
ARM's optimized-routines, math/{exp2f_data,logf_data}.c); PyTorch 2.13.0, ATen/cpu/vec/vec512/vec512_float.h; libdevice
of CUDA 13.0 (``__nv_expf``, ``__nv_logf``); github.com/Dao-AILab/flash-attention, commit 009739ff,
flash_attn/cute/utils.py.
"""

from __future__ import annotations

# -- glibc: doubles -------------------------------------------------------------------------------------------

EXP_TABLE: tuple[int, ...] = (
    0x3FF0000000000000,
    0x3FEFD9B0D3158574,
    0x3FEFB5586CF9890F,
    0x3FEF9301D0125B51,
    0x3FEF72B83C7D517B,
    0x3FEF54873168B9AA,
    0x3FEF387A6E756238,
    0x3FEF1E9DF51FDEE1,
    0x3FEF06FE0A31B715,
    0x3FEEF1A7373AA9CB,
    0x3FEEDEA64C123422,
    0x3FEECE086061892D,
    0x3FEEBFDAD5362A27,
    0x3FEEB42B569D4F82,
    0x3FEEAB07DD485429,
    0x3FEEA47EB03A5585,
    0x3FEEA09E667F3BCD,
    0x3FEE9F75E8EC5F74,
    0x3FEEA11473EB0187,
    0x3FEEA589994CCE13,
    0x3FEEACE5422AA0DB,
    0x3FEEB737B0CDC5E5,
    0x3FEEC49182A3F090,
    0x3FEED503B23E255D,
    0x3FEEE89F995AD3AD,
    0x3FEEFF76F2FB5E47,
    0x3FEF199BDD85529C,
    0x3FEF3720DCEF9069,
    0x3FEF5818DCFBA487,
    0x3FEF7C97337B9B5F,
    0x3FEFA4AFA2A490DA,
    0x3FEFD0765B6E4540,
)
"""Words of 2**(i/32), less i in the place of thirty-seconds of an exponent."""

EXP_STEPS = float.fromhex("0x1.71547652b82fep+5")
"""32 / log(2)."""
EXP_SHIFT = float.fromhex("0x1.8p+52")
EXP_POLYNOMIAL: tuple[float, float, float] = (
    float.fromhex("0x1.c6af84b912394p-20"),
    float.fromhex("0x1.ebfce50fac4f3p-13"),
    float.fromhex("0x1.62e42ff0c52d6p-6"),
)
"""Coefficients of r**3, r**2 and r of 2**(r/32)."""
EXP_OVERFLOW = float.fromhex("0x1.62e42ep6")
EXP_UNDERFLOW = float.fromhex("-0x1.9fe368p6")
EXP_SMALLEST = float.fromhex("-0x1.9d1d9ep6")
"""Below the second the result is zero; from there to the third it is the smallest subnormal number."""

LOG_INVERSES: tuple[float, ...] = tuple(
    map(
        float.fromhex,
        (
            "0x1.661ec79f8f3bep+0",
            "0x1.571ed4aaf883dp+0",
            "0x1.49539f0f010b0p+0",
            "0x1.3c995b0b80385p+0",
            "0x1.30d190c8864a5p+0",
            "0x1.25e227b0b8ea0p+0",
            "0x1.1bb4a4a1a343fp+0",
            "0x1.12358f08ae5bap+0",
            "0x1.0953f419900a7p+0",
            "0x1.0000000000000p+0",
            "0x1.e608cfd9a47acp-1",
            "0x1.ca4b31f026aa0p-1",
            "0x1.b2036576afce6p-1",
            "0x1.9c2d163a1aa2dp-1",
            "0x1.886e6037841edp-1",
            "0x1.767dcf5534862p-1",
        ),
    )
)
LOG_VALUES: tuple[float, ...] = tuple(
    map(
        float.fromhex,
        (
            "-0x1.57bf7808caadep-2",
            "-0x1.2bef0a7c06ddbp-2",
            "-0x1.01eae7f513a67p-2",
            "-0x1.b31d8a68224e9p-3",
            "-0x1.6574f0ac07758p-3",
            "-0x1.1aa2bc79c8100p-3",
            "-0x1.a4e76ce8c0e5ep-4",
            "-0x1.1973c5a611cccp-4",
            "-0x1.252f438e10c1ep-5",
            "0x0.0p+0",
            "0x1.aa5aa5df25984p-5",
            "0x1.c5e53aa362eb4p-4",
            "0x1.526e57720db08p-3",
            "0x1.bc2860d224770p-3",
            "0x1.1058bc8a07ee1p-2",
            "0x1.4043057b6ee09p-2",
        ),
    )
)
"""By sixteenth of a binade: about 1/c, and log(c)."""
LOG_OFFSET = 0x3F330000
LOG_LN2 = float.fromhex("0x1.62e42fefa39efp-1")
LOG_POLYNOMIAL: tuple[float, float, float] = (
    float.fromhex("-0x1.00ea348b88334p-2"),
    float.fromhex("0x1.5575b0be00b6ap-2"),
    float.fromhex("-0x1.ffffef20a4123p-2"),
)
"""Coefficients of r**4, r**3 and r**2 of log(1 + r)."""

# -- PyTorch: f32 ---------------------------------------------------------------------------------------------

U20_POLYNOMIAL: tuple[int, int, int, int] = (0xBDA235D5, 0xBE65B8F5, 0x3E9B69F0, 0x38E077A1)
"""Words of the coefficients of the cube down to the constant of frac - 2**frac + 1."""
U20_LOWEST = 0xC2AEAC50
U20_HIGHEST = 0x42B17218
"""log of the smallest normal and of the largest f32 number."""

# -- CUDA: f32 ------------------------------------------------------------------------------------------------

EXPF_STEPS = 0x3BBB989D
"""log2(e) / 252."""
EXPF_TAIL = 0x32A57060
"""log2(e) less its f32 value."""
LOGF_OFFSET = 0x3F2AAAAB
LOGF_POLYNOMIAL: tuple[int, ...] = (
    0xBE055027,
    0x3E1039F6,
    0xBDF8CDCC,
    0x3E0F2955,
    0xBE2AD8B9,
    0x3E4CED0B,
    0xBE7FFF22,
    0x3EAAAA78,
    0xBF000000,
)
LOGF_LN2 = 0x3F317218

# -- FlashAttention-4: f32 ------------------------------------------------------------------------------------

FA4_POLYNOMIAL: tuple[int, int, int, int] = (0x3D9DF09D, 0x3E6906A4, 0x3F31F519, 0x3F800000)
FA4_LOWEST = -127.0
FA4_SHIFT = 12582912.0
"""1.5 * 2**23."""
