"""Head shapes of models, as data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from specs.platforms import NamedFile, load_file
from specs.schema import RefusalError

Heads = Annotated[int, Field(ge=1, le=1 << 16)]


class ModelShape(NamedFile):
    """The attention shape of one model: heads, elements of a head, and the factor on q . k."""

    q_heads: Heads
    kv_heads: Heads
    head_dim: Heads
    scale: Annotated[float, Field(gt=0, le=1e6)]

    @model_validator(mode="after")
    def _grouped(self) -> ModelShape:
        if self.q_heads % self.kv_heads:
            raise RefusalError(
                f"q_heads = {self.q_heads} is not a multiple of kv_heads = {self.kv_heads}",
                "every KV head serves the same number of query heads",
            )
        return self


def load_model(name_or_path: str | Path) -> ModelShape:
    """The model of a name (``qwen``) or a path.

    Raises:
        SpecError: unknown name, or a file that is not a model.
    """
    return load_file(ModelShape, name_or_path, "model")
