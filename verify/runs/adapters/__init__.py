"""Formats of inference engines as runs: `ADAPTERS` says which, `verify.runs.load` picks one and completes the manifest."""

from __future__ import annotations

from importlib import import_module

from specs.errors import InputError, did_you_mean
from verify.runs.adapters.base import Adapter, Reader

ADAPTERS = {
    a.name: a
    for a in (
        Adapter(
            "vllm", "vllm", "vLLM: completions and chat answers (packed too), offline RequestOutput as JSON"
        ),
        Adapter("sglang", "sglang", "SGLang: answers of /generate"),
        Adapter(
            "transformers",
            "hf",
            "Hugging Face generate() and forward(): logits or scores in npz or safetensors",
        ),
        Adapter("tgi", "tgi", "Text Generation Inference: answers with details"),
        Adapter("llama_cpp", "llama_cpp", "llama.cpp: the .kld file of llama-perplexity"),
        Adapter(
            "tensorrt_llm",
            "tensorrt_llm",
            "TensorRT-LLM: context and generation logits in npz or safetensors",
        ),
        Adapter("difr", "difr", "DiFR: {config, samples} with token ids"),
        Adapter(
            "openai",
            "openai",
            "OpenAI-style chat and completions, Ollama, llama.cpp server: texts, seldom ids",
        ),
    )
}


def reader_of(name: str) -> Reader:
    """The reader of an adapter.

    Raises:
        InputError: there is none of that name.
    """
    if name not in ADAPTERS:
        raise InputError(
            f"unknown adapter '{name[:80]}'", place="--adapter", remedy=did_you_mean(name, ADAPTERS)
        )
    return import_module(f"verify.runs.adapters.{ADAPTERS[name].module}").read
