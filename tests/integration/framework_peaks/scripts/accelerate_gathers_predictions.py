"""accelerate: all logits of the evaluation are gathered and kept on the GPU until the metric after
each epoch."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForMaskedLM

accelerator = Accelerator(mixed_precision="bf16")
config = BertConfig(vocab_size=2000, hidden_size=192, num_hidden_layers=3, num_attention_heads=4, intermediate_size=768)
model = BertForMaskedLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
train_loader = DataLoader(TensorDataset(torch.randint(0, 2000, (4800, 64))), batch_size=16, shuffle=True)
eval_loader = DataLoader(TensorDataset(torch.randint(0, 2000, (480, 64))), batch_size=16)
model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)

for epoch in range(3):
    model.train()
    for (ids,) in train_loader:
        masked = ids.masked_fill(torch.rand(ids.shape, device=ids.device) < 0.15, 3)
        loss = model(input_ids=masked, labels=ids).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    model.eval()
    all_logits, all_labels = [], []
    for (ids,) in eval_loader:
        with torch.no_grad():
            logits = model(input_ids=ids).logits
        logits, labels = accelerator.gather_for_metrics((logits, ids))
        all_logits.append(logits)
        all_labels.append(labels)
    logits, labels = torch.cat(all_logits), torch.cat(all_labels)
    top5 = (logits.topk(5, dim=-1).indices == labels[..., None]).any(-1).float().mean()
    accelerator.print(f"epoch {epoch}: top-5 accuracy {top5.item():.3f}")
