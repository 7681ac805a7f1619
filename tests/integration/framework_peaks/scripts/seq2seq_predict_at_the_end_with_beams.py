"""Seq2SeqTrainer: the loss alone is validated while training; at the end the test set is predicted
with six beams."""

import torch
from transformers import BartConfig, BartForConditionalGeneration, Seq2SeqTrainer, Seq2SeqTrainingArguments


class Summaries(torch.utils.data.Dataset):
    def __init__(self, size):
        self.articles = torch.randint(4, 3000, (size, 128))
        self.summaries = torch.randint(4, 3000, (size, 32))

    def __len__(self):
        return len(self.articles)

    def __getitem__(self, i):
        return {
            "input_ids": self.articles[i],
            "attention_mask": torch.ones_like(self.articles[i]),
            "labels": self.summaries[i],
        }


config = BartConfig(
    vocab_size=3000,
    d_model=192,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=768,
    decoder_ffn_dim=768,
    max_position_embeddings=256,
)
args = Seq2SeqTrainingArguments(
    output_dir="bart",
    max_steps=600,
    per_device_train_batch_size=4,
    per_device_eval_batch_size=32,
    save_strategy="no",
    predict_with_generate=True,
)
trainer = Seq2SeqTrainer(model=BartForConditionalGeneration(config), args=args, train_dataset=Summaries(2000))
trainer.train()
result = trainer.predict(Summaries(64), max_length=33, min_length=33, num_beams=6)
print(result.predictions.shape, result.metrics)
