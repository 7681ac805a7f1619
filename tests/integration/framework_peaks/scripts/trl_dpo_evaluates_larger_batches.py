"""TRL's DPOTrainer with its reference model; evaluated every 250 steps in batches eight times as
large."""

import copy
import random

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import DPOConfig, DPOTrainer

random.seed(9)
VOCAB = 4000
backend = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t3"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token="t0", bos_token="t1", eos_token="t2", unk_token="t3"
)


def text(length):
    return " ".join(f"t{random.randrange(4, VOCAB)}" for _ in range(length))


def preferences(count):
    return Dataset.from_list(
        [{"prompt": text(32), "chosen": " " + text(63), "rejected": " " + text(63)} for _ in range(count)]
    )


model = Qwen2ForCausalLM(
    Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
)
args = DPOConfig(
    output_dir="dpo",
    beta=0.1,
    max_length=128,
    max_steps=500,
    per_device_train_batch_size=4,
    per_device_eval_batch_size=32,
    eval_strategy="steps",
    eval_steps=250,
    learning_rate=5e-6,
    gradient_checkpointing=False,
    save_strategy="no",
)
trainer = DPOTrainer(
    model=model,
    ref_model=copy.deepcopy(model),
    args=args,
    train_dataset=preferences(2000),
    eval_dataset=preferences(96),
    processing_class=tokenizer,
)
trainer.train()
