"""TRL's SFTTrainer on texts of random lengths, padded batch by batch: the longest come when they
are drawn."""

import random

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

random.seed(5)
words = ["<pad>", "<s>", "</s>", "<unk>", *[f"w{i}" for i in range(3996)]]
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
)
texts = [
    " ".join(f"w{random.randrange(3996)}" for _ in range(int(random.gammavariate(2, 50)) + 8)) for _ in range(3000)
]

config = LlamaConfig(
    vocab_size=len(words),
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
args = SFTConfig(
    output_dir="sft",
    per_device_train_batch_size=8,
    num_train_epochs=1,
    max_length=512,
    gradient_checkpointing=False,
    save_strategy="no",
    logging_steps=50,
)
trainer = SFTTrainer(
    model=LlamaForCausalLM(config),
    args=args,
    train_dataset=Dataset.from_dict({"text": texts}),
    processing_class=tokenizer,
)
trainer.train()
