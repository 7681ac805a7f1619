"""LoRA by PEFT under transformers' Trainer, blocks of one length; the adapter is saved at the end.
Peaks at once."""

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Instructions(torch.utils.data.Dataset):
    def __init__(self, size):
        self.ids = torch.randint(0, 6000, (size, 128))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


base = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=6000,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=6,
        max_position_embeddings=128,
    )
)
lora = LoraConfig(
    task_type=TaskType.CAUSAL_LM, r=16, lora_alpha=32, lora_dropout=0.05, target_modules=["q_proj", "v_proj"]
)
model = get_peft_model(base, lora)
model.print_trainable_parameters()
args = TrainingArguments(
    "lora",
    per_device_train_batch_size=8,
    num_train_epochs=1,
    learning_rate=2e-4,
    lr_scheduler_type="cosine",
    save_strategy="no",
)
Trainer(model=model, args=args, train_dataset=Instructions(4800)).train()
model.save_pretrained("lora/adapter")
