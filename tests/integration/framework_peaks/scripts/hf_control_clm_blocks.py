"""GPT-2 from scratch on blocks of one length, as run_clm.py does it; checkpoints every 300 steps.
Peaks at once."""

import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, default_data_collator, set_seed

set_seed(0)
BLOCK = 128
tokens = torch.randint(0, 6000, (4000 * BLOCK,)).view(-1, BLOCK).tolist()
train = Dataset.from_dict({"input_ids": tokens, "labels": tokens})

config = GPT2Config(vocab_size=6000, n_positions=256, n_embd=256, n_layer=3, n_head=4)
model = GPT2LMHeadModel(config)
print(f"{model.num_parameters():,} parameters")

args = TrainingArguments(
    output_dir="gpt2-small-scratch",
    max_steps=900,
    per_device_train_batch_size=8,
    learning_rate=3e-4,
    lr_scheduler_type="cosine",
    warmup_steps=100,
    weight_decay=0.1,
    save_steps=300,
    save_total_limit=1,
    logging_steps=100,
)
trainer = Trainer(model=model, args=args, train_dataset=train, data_collator=default_data_collator)
trainer.train()
trainer.save_model()
