"""A callback keeps an average of the weights from step 700 on: a second model on the GPU."""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class EMACallback(TrainerCallback):
    def __init__(self, decay=0.999, start_step=700):
        self.decay, self.start_step, self.ema = decay, start_step, None

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step < self.start_step:
            return
        if self.ema is None:
            self.ema = copy.deepcopy(model).eval().requires_grad_(False)
            return
        with torch.no_grad():
            for average, current in zip(self.ema.parameters(), model.parameters()):
                average.lerp_(current, 1 - self.decay)

    def on_train_end(self, args, state, control, **kwargs):
        self.ema.save_pretrained(f"{args.output_dir}/ema")


class Tokens(torch.utils.data.Dataset):
    def __init__(self):
        self.tokens = torch.randint(0, 4000, (5000, 64))

    def __len__(self):
        return 5000

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.tokens[i]}


model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=4000,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=3,
        num_attention_heads=8,
        max_position_embeddings=64,
    )
)
args = TrainingArguments(
    "averaged", max_steps=1000, per_device_train_batch_size=8, save_strategy="no", learning_rate=3e-4
)
Trainer(model=model, args=args, train_dataset=Tokens(), callbacks=[EMACallback()]).train()
