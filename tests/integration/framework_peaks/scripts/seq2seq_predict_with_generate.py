"""T5 by Seq2SeqTrainer; each evaluation generates in batches eight times as large. The peak comes
with the first."""

import numpy as np
import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration, set_seed

set_seed(2)


class Translations(torch.utils.data.Dataset):
    def __init__(self, size):
        self.source = torch.randint(2, 4000, (size, 64))
        self.target = torch.randint(2, 4000, (size, 48))

    def __len__(self):
        return len(self.source)

    def __getitem__(self, i):
        return {
            "input_ids": self.source[i],
            "attention_mask": torch.ones_like(self.source[i]),
            "labels": self.target[i],
        }


def compute_metrics(prediction):
    tokens = np.where(prediction.predictions < 0, 0, prediction.predictions)
    return {"gen_len": float(np.mean((tokens != 0).sum(axis=1)))}


config = T5Config(
    vocab_size=4000,
    d_model=192,
    d_kv=48,
    d_ff=768,
    num_layers=2,
    num_heads=4,
    decoder_start_token_id=0,
    pad_token_id=0,
    eos_token_id=1,
)
model = T5ForConditionalGeneration(config)
model.generation_config.min_new_tokens = 40
args = Seq2SeqTrainingArguments(
    output_dir="t5",
    num_train_epochs=2,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=64,
    eval_strategy="epoch",
    save_strategy="no",
    predict_with_generate=True,
    generation_max_length=48,
)
trainer = Seq2SeqTrainer(
    model=model,
    args=args,
    train_dataset=Translations(3200),
    eval_dataset=Translations(256),
    compute_metrics=compute_metrics,
)
trainer.train()
