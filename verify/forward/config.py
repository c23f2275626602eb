"""``model.toml``: which arithmetic each part of the forward has. Pydantic models, closed to unknown keys.

A part that is ``plain`` is left to XLA on this machine, in f32: nothing is promised of its bits. Everything else is
declared, and means the same on every machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from specs.document import parse_document, read_document, validate
from specs.errors import Place, SpecError, did_you_mean
from specs.grammar import parse_expr
from specs.nodes import Node, Reduce, Tree
from specs.schema import Frozen, Line, RefusalError, SpecName

Text = Annotated[str, StringConstraints(min_length=1, max_length=400)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Activation = Literal["bf16", "f16", "f32"]
PLAIN = "plain"
FOLDER = Path(__file__).parent / "configs"


def _parsed(text: str) -> Node:
    try:
        return parse_expr(text, Place("splits"))
    except SpecError as error:
        raise RefusalError(f"splits: {error.cause}", error.remedy) from None


def parse_tree(text: str) -> Tree:
    """The tree of ``dot(x, x, TREE)``.

    Raises:
        RefusalError: it is no tree that sums of squares can have.
    """
    try:
        node = parse_expr(f"dot(x, x, {text})", Place("tree"))
    except SpecError as error:
        raise RefusalError(f"tree: {error.cause}", error.remedy) from None
    if not isinstance(node, Reduce) or node.tree is None:
        raise RefusalError(f"'{text[:60]}' is no tree", "write seq(), pairwise(), lanes(...), chunks(...)")
    kinds = {t.kind for t in node.tree.walk() if isinstance(t, Tree)}
    if kinds & {"mma", "exact", "any"}:
        raise RefusalError(
            f"{'/'.join(sorted(kinds))} in a norm", "norms do not run on tensor cores, nor exactly"
        )
    return node.tree


class Numbers(Frozen):
    """What passes from kernel to kernel.

    Attributes:
        activations: format of every tensor between kernels, and of the weights (rounded once to it).
        residual: format of the residual stream; None: as activations.
        logits: format that the head rounds to; None: as activations.
    """

    activations: Activation = "f32"
    residual: Activation | None = None
    logits: Activation | None = None


class Attention(Frozen):
    """Attention.

    Attributes:
        kernel: ``plain``, or SPEC@PLATFORM.
        calls: ``steps``: each token in a call of its own, as in decoding; ``whole``: all tokens in one causal call.
        prompt: tokens that were read at once before the first step; only with ``steps``.
        prompt_kernel: SPEC@PLATFORM that read them, in one causal call.
        context: integers and words that formulas of the spec see (``batch``, ``page_size``, versions, ...).
        options: values for the spec's ``[options]``.
        lines: by section, lines of the spec of ``kernel`` that are other than it says.
    """

    kernel: Name = PLAIN
    calls: Literal["steps", "whole"] = "steps"
    prompt: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    prompt_kernel: Name | None = None
    context: dict[Name, int | str] = Field(default_factory=dict, max_length=40)
    options: dict[Name, bool | int | float] = Field(default_factory=dict, max_length=40)
    lines: dict[Name, dict[Name, Text]] = Field(default_factory=dict, max_length=20)

    @field_validator("kernel", "prompt_kernel")
    @classmethod
    def _cell(cls, value: str | None) -> str | None:
        if value is None or value == PLAIN:
            return value
        name, sign, platform = value.rpartition("@")
        if not (sign and name and platform):
            raise RefusalError(
                f"'{value}' is neither plain nor SPEC@PLATFORM", "write flash_attn2.prefill@h200"
            )
        return value

    @model_validator(mode="after")
    def _agrees(self) -> Attention:
        if (self.prompt > 0) != (self.prompt_kernel is not None):
            raise RefusalError("prompt and prompt_kernel belong together", "give both, or neither")
        if self.prompt_kernel == PLAIN or (self.kernel == PLAIN and self.prompt_kernel is not None):
            raise RefusalError(
                "plain attention does not know prompts", "give two specs, or kernel = 'plain' alone"
            )
        if self.calls == "whole" and self.prompt:
            raise RefusalError("one whole call has no prompt before it", "leave calls out")
        if self.kernel == PLAIN and (self.context or self.options or self.lines):
            raise RefusalError("plain attention takes no context, options or lines", "leave them out")
        return self


class Gemm(Frozen):
    """Matrix products.

    Attributes:
        kernel: ``plain``, or ``mma``: chains of tensor-core instructions over ascending k.
        platform: whose dot products they are.
        instruction: ``mma``, ``wgmma`` or ``tcgen05``; ``k``: terms of one.
        splits: integer formula of m, n, k (of the product), batch, sm_count and compute_capability: into how many slices
            the chain is cut. m is the number of rows of the call: that of the prompt, or of the batch in a step.
        unit: terms that are never parted by a cut; slices have ``ceildiv(ceildiv(k, unit), splits)`` units.
        merge: how the slices are added, in f32: ``seq`` in order, or ``pairwise``.
    """

    kernel: Literal["plain", "mma"] = PLAIN
    platform: Name | None = None
    instruction: Literal["mma", "wgmma", "tcgen05"] = "mma"
    k: Literal[4, 8, 16] = 16
    splits: Text = "1"
    unit: Annotated[int, Field(ge=16, le=4096, multiple_of=16)] = 64
    merge: Literal["seq", "pairwise"] = "seq"

    @model_validator(mode="after")
    def _agrees(self) -> Gemm:
        if (self.kernel == "mma") != (self.platform is not None):
            raise RefusalError(
                "mma products need a platform, plain ones have none", "write platform = 'h200'"
            )
        _parsed(self.splits)
        return self

    def formula(self) -> Node:
        """The parsed ``splits``."""
        return _parsed(self.splits)


class Norm(Frozen):
    """RMSNorm.

    Attributes:
        kernel: ``plain``, or ``tree``.
        tree: brackets of the sum of squares, ``dot(x, x, tree)``, where the sum follows an addition to the residual.
        tree_alone: where it does not (the first norm, and those of q and k); None: the same.
        mean: how the sum is divided by the count: ``div``, or ``mul`` by its reciprocal rounded once.
        root: ``mufu.rsq`` (the special-function unit), ``rsqrt`` (rounded once) or ``sqrt`` (1 / sqrt, each rounded).
        before_weight: whether x / root is rounded to the activations before it is multiplied by the weight.
    """

    kernel: Literal["plain", "tree"] = PLAIN
    tree: Text = "lanes(32, seq(), butterfly(16, 8, 4, 2, 1))"
    tree_alone: Text | None = None
    mean: Literal["div", "mul"] = "div"
    root: Literal["mufu.rsq", "rsqrt", "sqrt"] = "rsqrt"
    before_weight: bool = False

    @field_validator("tree", "tree_alone")
    @classmethod
    def _tree(cls, value: str | None) -> str | None:
        if value is not None:
            parse_tree(value)
        return value


class Rope(Frozen):
    """The rotary embedding.

    Attributes:
        angles: see `verify.forward.rotary.tables`. table: format of the stored cosines and sines.
        compute: ``f32``: two products and a sum in f32, rounded once to the activations; ``activations``: each operation
            rounds to the activations.
        fused: in f32, the first product and the sum are one FMA.
    """

    angles: Literal["f32", "f64"] = "f64"
    table: Literal["f32", "activations"] = "f32"
    compute: Literal["f32", "activations"] = "f32"
    fused: bool = False


class Mlp(Frozen):
    """SwiGLU: ``x / (1 + exp(-x)) * up``.

    Attributes:
        exp: the exponential: ``exp`` is correctly rounded; others as in `specs.functions`.
        divide: ``div`` (rounded once) or ``div.full``.
        round_gate: whether silu(x) is rounded to the activations before it is multiplied.
    """

    exp: Literal["exp", "cuda.expf", "cuda.fast_expf", "triton.exp"] = "exp"
    divide: Literal["div", "div.full"] = "div"
    round_gate: bool = False


class Arithmetic(Frozen):
    """A whole ``model.toml``."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: SpecName
    summary: Line = "not described"
    note: Annotated[tuple[Line, ...], Field(strict=False, max_length=40)] = ()
    numbers: Numbers = Numbers()
    attention: Attention = Attention()
    gemm: Gemm = Gemm()
    norm: Norm = Norm()
    rope: Rope = Rope()
    mlp: Mlp = Mlp()

    @property
    def all_plain(self) -> bool:
        """Whether nothing is declared: f32, as XLA likes it."""
        numbers = {self.numbers.activations, self.numbers.residual or "f32", self.numbers.logits or "f32"}
        parts = {self.attention.kernel, self.gemm.kernel, self.norm.kernel}
        return numbers == {"f32"} and parts == {PLAIN}

    @model_validator(mode="after")
    def _agrees(self) -> Arithmetic:
        if self.gemm.kernel == "mma" and self.numbers.activations == "f32":
            raise RefusalError("tensor cores take no f32 factors", "set activations = 'bf16' or 'f16'")
        return self


def load_arithmetic(name_or_path: str | Path) -> Arithmetic:
    """The arithmetic of a name that ships with the package (``f32``, ``vllm_bf16``, ...) or of a path.

    Raises:
        SpecError: unknown name, or a file that is no ``model.toml``, with place, cause and remedy.
    """
    text = str(name_or_path)
    if "/" in text or text.endswith(".toml"):
        return validate(Arithmetic, read_document(Path(text)))
    file = FOLDER / f"{text}.toml"
    known = [f.stem for f in FOLDER.glob("*.toml")]
    if text not in known:
        raise SpecError(f"unknown arithmetic '{text}'", place="--config", remedy=did_you_mean(text, known))
    return validate(Arithmetic, read_document(file))


def parse_arithmetic(text: str, name: str = "<text>") -> Arithmetic:
    """As `load_arithmetic`, of TOML text."""
    return validate(Arithmetic, parse_document(text, name))
