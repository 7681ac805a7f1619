"""Which model does a name mean, and how is it built with random weights and without a hub?

Imported by the workload scripts, which run in a job's Python (3.9 or newer) with torch, torchvision
and transformers. Image models go by torchvision's names, however they are written (ResNet101,
regnet_x_400mf), transformers by their hub ids. The paper's 25 models (xMem, arXiv 2510.21048, Table
1) are among them.
"""

import re
from types import SimpleNamespace
from typing import Any

import torch

TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "distilbert/distilgpt2": ("GPT2Config", {"n_layer": 6}),
    "openai-community/gpt2": ("GPT2Config", {}),
    "facebook/opt-125m": (
        "OPTConfig",
        {"hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
    ),
    "facebook/opt-350m": (
        "OPTConfig",
        {
            "hidden_size": 1024,
            "ffn_dim": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
        },
    ),
    "EleutherAI/gpt-neo-125M": (
        "GPTNeoConfig",
        {
            "hidden_size": 768,
            "num_layers": 12,
            "num_heads": 12,
            "attention_types": [[["global", "local"], 6]],
        },
    ),
    "cerebras/Cerebras-GPT-111M": (
        "GPT2Config",
        {
            "n_embd": 768,
            "n_layer": 10,
            "n_head": 12,
            "n_inner": 3072,
            "n_positions": 2048,
            "activation_function": "gelu",
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
        },
    ),
    "google-t5/t5-small": (
        "T5Config",
        {
            "d_model": 512,
            "d_ff": 2048,
            "num_layers": 6,
            "num_heads": 8,
            "decoder_start_token_id": 0,
        },
    ),
    "google-t5/t5-base": (
        "T5Config",
        {
            "d_model": 768,
            "d_ff": 3072,
            "num_layers": 12,
            "num_heads": 12,
            "decoder_start_token_id": 0,
        },
    ),
    "EleutherAI/pythia-160m": (
        "GPTNeoXConfig",
        {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "vocab_size": 50304,
        },
    ),
    "EleutherAI/pythia-410m": (
        "GPTNeoXConfig",
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "vocab_size": 50304,
        },
    ),
    "EleutherAI/pythia-1b": (
        "GPTNeoXConfig",
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 8,
            "vocab_size": 50304,
        },
    ),
    "Qwen/Qwen3-0.6B": (
        "Qwen3Config",
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen/Qwen3-4B": (
        "Qwen3Config",
        {
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
    ),
    "meta-llama/Llama-3.2-1B": (
        "LlamaConfig",
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
        },
    ),
    "meta-llama/Llama-3.2-3B": (
        "LlamaConfig",
        {
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
        },
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (
        "Qwen2Config",
        {
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
        },
    ),
}
"""Hub id -> configuration class of transformers and what differs from its defaults (each model's
own config.json)."""


class RecurrentLanguageModel(torch.nn.Module):
    """The LSTM of pytorch/examples' word_language_model with its defaults and WikiText-2's
    vocabulary.
    """

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=33278)
        self.encoder = torch.nn.Embedding(self.config.vocab_size, 200)
        self.layers = torch.nn.LSTM(200, 200, num_layers=2, dropout=0.2, batch_first=True)
        self.decoder = torch.nn.Linear(200, self.config.vocab_size)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        """Return an object with the loss, as transformers' models do; both are of batch x
        tokens.
        """
        logits = self.decoder(self.layers(self.encoder(input_ids))[0])
        return SimpleNamespace(
            loss=torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        )


_SPELLINGS = {"mobenetv3small": "mobilenetv3small", "mobenetv3large": "mobilenetv3large"}
"""xMem's names of the two MobileNetV3 models (`perf_estimator/models.py` of its repository)."""

_CIFAR_CLASSES = 10
"""What xMem's own three image models end in; it leaves the 1000 of ImageNet to all others, on the
same images."""


class UnknownModelError(Exception):
    """No builder goes by this name."""


def is_image_model(name: str) -> bool:
    """Whether `name` stands for a model of torchvision."""
    return _folded(name) == "mnasnet" or _image_builder(name) is not None


def build(name: str, as_xmem: bool = False) -> torch.nn.Module:
    """Return the model `name` with random weights, on the CPU.

    With `as_xmem` the image models that xMem builds with 10 classes have 10 classes; else all have
    1000.

    Raises:
        UnknownModelError: neither torchvision nor the table of transformers has it.
    """
    if is_image_model(name):
        return _image_model(name, as_xmem)
    return RecurrentLanguageModel() if name == "lstm" else _transformer(name)


def _image_model(name: str, as_xmem: bool) -> torch.nn.Module:
    from torchvision import models  # noqa: PLC0415 - a job that trains transformers need not have it

    folded = _folded(name)
    classes = (
        {"num_classes": _CIFAR_CLASSES}
        if as_xmem and (folded in _SPELLINGS or folded == "mnasnet")
        else {}
    )
    if folded == "mnasnet":
        return models.MNASNet(alpha=1.0, **classes)
    builder = _image_builder(name)
    assert builder is not None
    return models.get_model(builder, weights=None, **classes)


def _image_builder(name: str) -> "str | None":
    import torchvision.models  # noqa: PLC0415

    wanted = _SPELLINGS.get(_folded(name), _folded(name))
    # torch.fx and detection models have modules of their own; these are the classifiers of the
    # package itself.
    names = torchvision.models.list_models(module=torchvision.models)
    return next((each for each in names if _folded(each) == wanted), None)


def _transformer(name: str) -> torch.nn.Module:
    import transformers  # noqa: PLC0415 - seconds that image models need not wait

    known = {hub_id.rpartition("/")[2].lower(): entry for hub_id, entry in TRANSFORMERS.items()}
    entry = known.get(name.rpartition("/")[2].lower())
    if entry is None:
        raise UnknownModelError(
            f"{name}: no model of torchvision and none of {', '.join(TRANSFORMERS)}"
        )
    configuration = getattr(transformers, entry[0], None)
    if configuration is None:
        raise UnknownModelError(
            f"{name}: transformers {transformers.__version__} has no {entry[0]}"
        )
    is_t5 = entry[0] == "T5Config"
    family = transformers.AutoModelForSeq2SeqLM if is_t5 else transformers.AutoModelForCausalLM
    return family.from_config(configuration(**entry[1]))


def vocabulary(model: torch.nn.Module) -> int:
    """Return how many tokens a transformer knows."""
    configuration: Any = model.config
    return int(configuration.vocab_size)


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
