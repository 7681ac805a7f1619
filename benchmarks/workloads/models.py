"""Which model does a benchmark's row mean, and how is it built with random weights and no hub?

Imported by the workload scripts, which run in a job's Python: torch, torchvision and transformers, nothing else (3.9).
The names are those of the published runs of xMem (arXiv 2510.21048) and of torchvision and the Hugging Face hub.
"""

import torch

IMAGE_CLASSES = 10
"""Classes of the models that xMem builds from their class (`perf_estimator/models.py`); the others keep 1000."""

TRANSFORMERS = {
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
        {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "attention_types": [[["global", "local"], 6]]},
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
    "google-t5/t5-small": ("T5Config", {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8}),
    "google-t5/t5-base": ("T5Config", {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}),
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
"""Hub id -> configuration class of transformers and what differs from its defaults (each model's own config.json)."""
