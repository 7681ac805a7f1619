"""A callback lengthens what the collator keeps of each text: 64 tokens at first, 256 from step 800
on."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

SCHEDULE = {0: 64, 400: 128, 800: 256}


class Collator:
    def __init__(self):
        self.length = SCHEDULE[0]

    def __call__(self, rows):
        ids = torch.stack(rows)[:, : self.length]
        return {"input_ids": ids, "labels": ids}


class Curriculum(TrainerCallback):
    def __init__(self, collator):
        self.collator = collator

    def on_step_begin(self, args, state, control, **kwargs):
        self.collator.length = SCHEDULE.get(state.global_step, self.collator.length)


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.randint(0, 5000, (256,))


collator = Collator()
trainer = Trainer(
    model=GPT2LMHeadModel(GPT2Config(vocab_size=5000, n_positions=256, n_embd=128, n_layer=2, n_head=2)),
    args=TrainingArguments(
        "curriculum",
        max_steps=1000,
        per_device_train_batch_size=8,
        remove_unused_columns=False,
        save_strategy="no",
    ),
    train_dataset=Texts(),
    data_collator=collator,
    callbacks=[Curriculum(collator)],
)
trainer.train()
