"""accelerate: a student is trained by itself for two epochs, then with a larger teacher that is
loaded only then."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

student_config = BertConfig(
    vocab_size=5000,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
    num_labels=8,
)
teacher_config = BertConfig(
    vocab_size=5000,
    hidden_size=512,
    num_hidden_layers=8,
    num_attention_heads=8,
    intermediate_size=2048,
    num_labels=8,
)
accelerator = Accelerator()
student = BertForSequenceClassification(student_config)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
data = TensorDataset(torch.randint(0, 5000, (6400, 64)), torch.randint(0, 8, (6400,)))
student, optimizer, loader = accelerator.prepare(student, optimizer, DataLoader(data, batch_size=32, shuffle=True))
teacher = None
for epoch in range(4):
    if epoch == 2:
        teacher = BertForSequenceClassification(teacher_config).to(accelerator.device).eval()
    for ids, labels in loader:
        logits = student(input_ids=ids).logits
        loss = F.cross_entropy(logits, labels)
        if teacher is not None:
            with torch.no_grad():
                soft = F.softmax(teacher(input_ids=ids).logits / 2, dim=-1)
            loss = loss + F.kl_div(F.log_softmax(logits / 2, dim=-1), soft, reduction="batchmean")
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print("epoch", epoch, "loss", loss.item())
