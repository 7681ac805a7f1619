"""The best checkpoint is loaded beside the trained model and tested in large batches. The peak is
that test."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

LENGTH = 128


class Pairs(torch.utils.data.Dataset):
    def __init__(self, size):
        self.ids = torch.randint(4, 5000, (size, LENGTH))
        self.labels = torch.randint(0, 3, (size,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


config = BertConfig(
    vocab_size=5000,
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=8,
    intermediate_size=1024,
    num_labels=3,
)
train, valid, test = Pairs(4000), Pairs(200), Pairs(1200)
args = TrainingArguments(
    output_dir="nli",
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    num_train_epochs=2,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=1,
    load_best_model_at_end=True,
    metric_for_best_model="loss",
)
trainer = Trainer(model=BertForSequenceClassification(config), args=args, train_dataset=train, eval_dataset=valid)
trainer.train()
trainer.save_model("nli/best")

best = BertForSequenceClassification.from_pretrained("nli/best").to("cuda").eval()
right = 0
with torch.no_grad():
    for batch in torch.utils.data.DataLoader(test, batch_size=400):
        logits = best(input_ids=batch["input_ids"].cuda()).logits
        right += (logits.argmax(-1).cpu() == batch["labels"]).sum().item()
print("test accuracy", right / len(test))
