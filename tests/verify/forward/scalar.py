"""The declared arithmetic one number at a time, on the package's scalar definitions (`verify.numerics`) and nothing else."""

from typing import Any

import ml_dtypes
import numpy as np

from specs import load_platform, load_spec
from specs.dot_products import find
from specs.formats import BASES
from verify import emulate
from verify.numerics.elementary import exp, rcp
from verify.numerics.operations import add, div, fma, mul, sqrt, sub
from verify.numerics.rounding import round_float
from verify.numerics.special import SPECIAL
from verify.numerics.tensor_core import chained

F32, BF16 = BASES["f32"], BASES["bf16"]


def bf16(x: float) -> float:
    return round_float(x, BF16)


class Scalar:
    """The forward of a tiny model in the arithmetic ``c`` (the sections of a model.toml as dicts).

    The sum of squares is given by ``squares(xs)``: brackets are written out by the test.
    """

    def __init__(self, config: dict[str, Any], weights: dict[str, np.ndarray], c: dict[str, Any]) -> None:
        self.config, self.c = config, c
        self.w = {n: x.astype(ml_dtypes.bfloat16).astype(np.float64) for n, x in weights.items()}
        self.gemm_platform = load_platform(c["gemm"]["platform"])
        self.dot = find(self.gemm_platform.dot_products, "mma", BF16, BF16, F32, c["gemm"]["k"])
        name, _, platform = c["attention"]["kernel"].rpartition("@")
        self.spec, self.platform = load_spec(name), load_platform(platform)

    def product(self, x: list[float], w: np.ndarray) -> list[float]:
        """Slices of whole units, each a chain from +0, added in order; then rounded to bf16."""
        gemm = self.c["gemm"]
        units = -(-len(x) // gemm["unit"])
        each = -(-units // gemm["splits"]) * gemm["unit"]
        out = []
        for row in w:
            total = None
            for i in range(0, len(x), each):
                part = chained(self.dot, gemm["k"], x[i : i + each], list(row[i : i + each]), 0.0, BF16, BF16)
                total = part if total is None else add(total, part, F32)
            out.append(bf16(total))
        return out

    def norm(self, xs: list[float], w: np.ndarray, squares: Any) -> list[float]:
        c = self.c["norm"]
        mean = div(squares(xs), float(len(xs)), F32)
        shifted = add(mean, float(np.float32(self.config["rms_norm_eps"])), F32)
        root = SPECIAL["mufu.rsq"](shifted, F32) if c["root"] == "mufu.rsq" else rcp(sqrt(shifted, F32), F32)
        ys = [mul(x, root, F32) for x in xs]
        if c["before_weight"]:
            return [mul(bf16(y), g, BF16) for y, g in zip(ys, w, strict=True)]
        return [bf16(mul(y, g, F32)) for y, g in zip(ys, w, strict=True)]

    def turned(self, xs: list[float], position: int) -> list[float]:
        c, dim = self.c["rope"], self.config["head_dim"]
        out = list(xs)
        for i in range(dim // 2):
            frequency = self.config["rope_theta"] ** (-2 * i / dim)
            angle = float(np.float32(np.float32(position) * np.float32(frequency)))
            cos, sin = (bf16(float(np.float32(f(angle)))) for f in (np.cos, np.sin))
            a, b = xs[i], xs[i + dim // 2]
            if c["compute"] == "activations":
                one = sub(mul(a, cos, BF16), mul(b, sin, BF16), BF16)
                two = add(mul(b, cos, BF16), mul(a, sin, BF16), BF16)
            else:
                one = bf16(fma(a, cos, -mul(b, sin, F32), F32))
                two = bf16(fma(b, cos, mul(a, sin, F32), F32))
            out[i], out[i + dim // 2] = one, two
        return out

    def silu(self, gate: float, up: float) -> float:
        c = self.c["mlp"]
        grown = exp(-gate, F32) if c["exp"] == "exp" else SPECIAL[c["exp"]](-gate, F32)
        below = add(grown, 1.0, F32)
        y = div(gate, below, F32) if c["divide"] == "div" else SPECIAL["div.full"](gate, below, F32)
        return mul(bf16(y), up, BF16) if c["round_gate"] else bf16(mul(y, up, F32))

    def logits(self, ids: list[int], squares: Any, squares_alone: Any) -> np.ndarray:
        """bf16 logits as float64 ``[tokens, vocab]``."""
        w, config = self.w, self.config
        heads, kv, dim = (config[n] for n in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        streams = [list(w["model.embed_tokens.weight"][i]) for i in ids]
        norm = w["model.layers.0.input_layernorm.weight"]
        hs = [self.norm(x, norm, squares_alone) for x in streams]
        for layer in range(config["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            rows: dict[str, list[Any]] = {"q": [], "k": [], "v": []}
            for position, h in enumerate(hs):
                for n, count in (("q", heads), ("k", kv), ("v", kv)):
                    flat = self.product(h, w[f"{p}self_attn.{n}_proj.weight"])
                    split = [flat[i * dim : (i + 1) * dim] for i in range(count)]
                    if n != "v" and config["model_type"] == "qwen3":
                        gain = w[f"{p}self_attn.{n}_norm.weight"]
                        split = [self.norm(x, gain, squares_alone) for x in split]
                    rows[n].append(split if n == "v" else [self.turned(x, position) for x in split])
            q, k, v = (np.array(rows[n]).astype(ml_dtypes.bfloat16) for n in "qkv")
            last = layer + 1 == config["num_hidden_layers"]
            after = "model.norm.weight" if last else f"model.layers.{layer + 1}.input_layernorm.weight"
            for i in range(len(ids)):
                out = emulate(
                    self.spec, self.platform, q=q[i], k=k[: i + 1], v=v[: i + 1], backend="oracle"
                ).output
                flat = [bf16(float(x)) for x in out.reshape(-1)]
                back = self.product(flat, w[p + "self_attn.o_proj.weight"])
                stream = [add(a, b, BF16) for a, b in zip(streams[i], back, strict=True)]
                h = self.norm(stream, w[p + "post_attention_layernorm.weight"], squares)
                gate = self.product(h, w[p + "mlp.gate_proj.weight"])
                up = self.product(h, w[p + "mlp.up_proj.weight"])
                both = [self.silu(a, b) for a, b in zip(gate, up, strict=True)]
                back = self.product(both, w[p + "mlp.down_proj.weight"])
                streams[i] = [add(a, b, BF16) for a, b in zip(stream, back, strict=True)]
                hs[i] = self.norm(streams[i], w[after], squares)
        return np.array([self.product(h, w["lm_head.weight"]) for h in hs])
