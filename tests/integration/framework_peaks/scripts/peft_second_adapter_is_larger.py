"""Two adapters by PEFT, one after the other: the second, of rank 128 on all projections, needs
more."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

VOCAB = 3000
base = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        max_position_embeddings=128,
    )
)
model = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]), adapter_name="style")
model.add_adapter("facts", LoraConfig(r=128, target_modules="all-linear"))
model.to("cuda")

for adapter, steps in [("style", 600), ("facts", 400)]:
    model.set_adapter(adapter)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-4)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 20, steps)
    model.print_trainable_parameters()
    for step in range(steps):
        ids = torch.randint(0, VOCAB, (8, 64), device="cuda")
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    print(adapter, loss.item())
    model.save_pretrained("adapters", selected_adapters=[adapter])
