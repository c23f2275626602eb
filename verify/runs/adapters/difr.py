"""DiFR (adamkarvonen/difr): ``{config, samples: [{prompt_token_ids, outputs: [{token_ids}]}]}``.

Its samples have the shape of vLLM's offline outputs: values are read where they are there, as often only ids are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verify.runs.adapters.base import Draft, Options, shaped, wrong
from verify.runs.adapters.vllm import answers
from verify.runs.jsonio import records
from verify.runs.rows import Conversations
from verify.runs.sequence import Sequence


def read(file: Path, options: Options) -> list[Draft]:
    """The run in a file of samples.

    Raises:
        InputError: no such samples.
    """
    found = next(iter(records(file)), None)
    value: Any = None if found is None else found.value
    samples = value.get("samples") if isinstance(value, dict) else None
    if not isinstance(samples, list):
        wrong(str(file), "has no list 'samples'")
    sequences: list[Sequence] = []
    order = Conversations()
    for index, sample in enumerate(samples):
        if not isinstance(sample, dict) or not isinstance(sample.get("outputs"), list):
            wrong(f"{file}: sample {index}", "has no list 'outputs'")
        with shaped(f"{file}: sample {index}"):
            sequences += answers(sample, sample, options, order, index)
    if not sequences:
        wrong(str(file), "has no sample with token ids")
    config: Any = value.get("config")
    draft = Draft(sequences, {}, {"value_kind": "raw_logprobs"})
    if isinstance(config, dict):
        model, provider, temperature = (config.get(k) for k in ("model", "provider", "temperature"))
        draft.model = str(model or config.get("trusted_model_name") or "")[:200] or None
        if isinstance(provider, str):
            draft.coordinate["provider"] = provider[:200]
        if isinstance(temperature, (int, float)) and not isinstance(temperature, bool) and temperature >= 0:
            draft.capture |= {"temperature": float(temperature), "greedy": temperature == 0}
    return [draft]
