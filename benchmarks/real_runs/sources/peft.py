"""Llama-3.2-3B fine-tuned by each method of PEFT: MetaMathQA of method_comparison, the most that
was reserved.

The model (zeros of its shapes), its tokenizer and the data sets are gated or on a hub, and stood
for by what is laid out here. The peak hangs on the longest batch of 5000 steps, and the lengths of
MetaMathQA's samples are not published. So the longest batch comes first, and is as long as
lora/llama-3.2-3B-rank32 says, which is therefore no evidence. That a dry run of real data may end
before that batch is an error which these rows do not show. run.py asserts that the base model knows
Wikipedia, as no stand-in does: PYTHONOPTIMIZE=1.

Scripts and package are those of the commit that a result names: the checkout is a clone with its
history. An experiment that was committed only with its result is taken from the checkout.

The mean and 99th percentile of steps follow from all lengths, and image-gen's FLUX.2 is not laid
out: without answer.

Needs transformers 5.13, datasets 4.2, accelerate, bitsandbytes and their packages.
"""

import json
import math
import random
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.real_runs.rows import Row
from benchmarks.real_runs.runs import Run, gpu_of, peak
from xmem_slurm.sizing.estimate import Estimate

SOURCE = "huggingface/peft"
COMPARISON = "method_comparison/MetaMathQA"
MODEL = "meta-llama/Llama-3.2-3B"
LONGEST = 701
"""Tokens of the longest batch's samples, without the first, which the tokenizer adds: so that the
peak of lora/llama-3.2-3B-rank32 is 21260 MiB."""
MEDIAN, SPREAD = 190, 0.45
"""Of a log-normal distribution of lengths whose mean is 210 tokens: 4198051 of 20000 samples (train
total tokens)."""
SAMPLES, TEXTS = 2_000, 8
"""Of the training data and of Wikipedia: what follows is like what was."""
HIDDEN, INTERMEDIATE, LAYERS, KEY_VALUE, VOCABULARY = 3072, 8192, 28, 1024, 128256
"""Of the model: its config.json, as transformers' LlamaConfig names them."""
BEGIN, END = 128000, 128001
CHARACTER = "z"
"""The one that is a token; no template of the script has it, and what is no token counts
nothing."""


def runs(rows: Sequence[Row], checkout: Path, folder: Path) -> Iterator[Run]:
    """Yield one run for each experiment of MetaMathQA."""
    data = folder / "data"
    _lay_out_model(data / MODEL)
    _lay_out_data(data, random.Random(0))
    for row in rows:
        if row.columns["what"].endswith("/MetaMathQA") and row.metric.endswith("(max)"):
            result = json.loads((checkout / row.columns["path"]).read_text(encoding="utf-8"))
            tree = _tree(checkout, folder, result["meta_info"]["package_info"]["peft-commit-hash"])
            experiment = row.columns["command_or_config"].split()[-1]
            if not (tree / COMPARISON / experiment).exists():
                shutil.copytree(checkout / COMPARISON / experiment, tree / COMPARISON / experiment)
            yield Run(
                key=experiment,
                rows=[row],
                script="#!/bin/bash\n#SBATCH --gres=gpu:1\nexec "
                f"{row.columns['command_or_config']}\n",
                folder=tree / COMPARISON,
                gpu=gpu_of(row),
                torch=row.torch,
                answer=beyond_the_first,
                environ={
                    "PYTHONPATH": str(tree / "src"),
                    "HF_HUB_OFFLINE": "1",
                    "PYTHONOPTIMIZE": "1",
                },
                seconds=300,
            )


def _tree(checkout: Path, folder: Path, commit: str) -> Path:
    """Check a commit out as the main branch, which run.py asks for, with the data in place; return
    its folder.
    """
    tree = folder / commit
    if not tree.exists():
        subprocess.run(
            ["git", "clone", "-q", "--shared", "--no-checkout", checkout, tree], check=True
        )
        subprocess.run(["git", "-C", tree, "checkout", "-q", "-B", "main", commit], check=True)
        for each in (folder / "data").iterdir():
            (tree / COMPARISON / each.name).symlink_to(each)
    return tree


def beyond_the_first(row: Row, estimate: Estimate) -> int:
    """Return what log_results notes: the peak without what was reserved when init_accelerator reset
    it again.
    """
    return peak(row, estimate) - estimate.largest.trace.between_resets[1]["reserved_bytes"]


def _lay_out_model(folder: Path) -> None:
    """Write a model as transformers reads one: its weights are a file of one hole."""
    folder.mkdir(parents=True)
    rope = {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "rope_scaling": rope | {"rope_type": "llama3"},
        "tie_word_embeddings": True,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
    }
    _write(folder / "config.json", config)
    _write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"},
    )
    _write(folder / "tokenizer.json", _tokenizer())
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in _weights():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def _weights() -> Iterator[tuple[str, Sequence[int]]]:
    """Yield the names and shapes of a Llama's weights."""
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for layer in range(LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{norm}.weight", (HIDDEN,)
        for name, rows in (("q", HIDDEN), ("k", KEY_VALUE), ("v", KEY_VALUE), ("o", HIDDEN)):
            yield f"model.layers.{layer}.self_attn.{name}_proj.weight", (rows, HIDDEN)
        for name, shape in (("gate", (INTERMEDIATE, HIDDEN)), ("up", (INTERMEDIATE, HIDDEN))):
            yield f"model.layers.{layer}.mlp.{name}_proj.weight", shape
        yield f"model.layers.{layer}.mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)


def _tokenizer() -> dict[str, object]:
    """Return a tokenizer of the model's vocabulary to which a character is a token, and a text
    begins with one more.
    """
    added = {BEGIN: "<begin>", END: "<end>"}
    words = {added.get(token, f"<{token}>"): token for token in range(1, VOCABULARY)}
    begin = {"id": "<begin>", "ids": [BEGIN], "tokens": ["<begin>"]}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": token, "content": word, "special": True} | flags for token, word in added.items()
        ],
        "model": {"type": "BPE", "vocab": {CHARACTER: 0} | words, "merges": []},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<begin>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 0}},
            ],
            "special_tokens": {"<begin>": begin},
        },
    }


def _lay_out_data(folder: Path, chance: random.Random) -> None:
    """Write the three data sets, texts of as many tokens as there may be in them."""
    lengths = (round(chance.lognormvariate(math.log(MEDIAN), SPREAD)) for _ in iter(int, 1))
    short = [LONGEST] * 4 + [
        next(length for length in lengths if 30 < length < LONGEST) for _ in range(SAMPLES - 4)
    ]
    same = {"type": "", "original_question": ""}
    metamath = (same | {"query": _text(n // 4), "response": _text(n - n // 4)} for n in short)
    _write_lines(folder / "meta-math/MetaMathQA/train.jsonl", metamath)
    card = ["---", "configs:", "- config_name: main", "  data_files:"]
    for split, rows in (("train", 200), ("test", 100)):
        card += [f"  - split: {split}", f"    path: {split}.jsonl"]
        question = ({"question": _text(60), "answer": "#### 7"} for _ in range(rows))
        _write_lines(folder / "openai/gsm8k" / f"{split}.jsonl", question)
    (folder / "openai/gsm8k/README.md").write_text("\n".join([*card, "---", ""]), encoding="utf-8")
    _write_lines(
        folder / "HuggingFaceFW/finewiki/train.jsonl", ({"text": _text(900)} for _ in range(TEXTS))
    )


def _text(tokens: int) -> str:
    return CHARACTER * tokens


def _write(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _write_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
