"""accelerate's nlp_example: pairs padded to one length, metrics gathered after each epoch. Peaks at
once."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

MAX_GPU_BATCH_SIZE, EVAL_BATCH_SIZE = 16, 16


def dataset(size):
    return TensorDataset(torch.randint(1, 6000, (size, 128)), torch.randint(0, 2, (size,)))


def training_function(config):
    accelerator = Accelerator()
    set_seed(config["seed"])
    train_dataloader = DataLoader(dataset(3600), shuffle=True, batch_size=MAX_GPU_BATCH_SIZE, drop_last=True)
    eval_dataloader = DataLoader(dataset(408), batch_size=EVAL_BATCH_SIZE)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=6000,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
        )
    )
    model = model.to(accelerator.device)
    optimizer = AdamW(params=model.parameters(), lr=config["lr"])
    lr_scheduler = get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=100, num_training_steps=len(train_dataloader) * config["num_epochs"]
    )
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(config["num_epochs"]):
        model.train()
        for input_ids, labels in train_dataloader:
            loss = model(input_ids=input_ids, labels=labels).loss
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        model.eval()
        right = total = 0
        for input_ids, labels in eval_dataloader:
            with torch.no_grad():
                outputs = model(input_ids=input_ids)
            predictions = outputs.logits.argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, labels))
            right += (predictions == references).sum().item()
            total += len(references)
        accelerator.print(f"epoch {epoch}:", right / total)


if __name__ == "__main__":
    training_function({"lr": 2e-5, "num_epochs": 3, "seed": 42})
