"""Text is not all that is trained on: images with text, speech, and noise in images, as the CPU's
own allocations say.

The same script by both engines: on the stand-ins, and by real steps on the CPU, whose allocations
are torch's own."""

from pathlib import Path

import pytest

from tests.harness import probe
from xmem_slurm.allocator.replay import replay
from xmem_slurm.profile import recording
from xmem_slurm.profile.orchestrator import orchestrate

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow(
        covers=["xmem_slurm/profile/*", "xmem_slurm/probe/*cpu*", "xmem_slurm/probe/*values*"]
    ),
]

CLIP = """
from transformers import CLIPConfig, CLIPModel
text = dict(hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=4, vocab_size=8192)
vision = dict(hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=4, image_size=96)
model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision))
def loss(device):
    words = torch.randint(0, 8192, (16, 64), device=device)
    pixels = torch.randn(16, 3, 96, 96, device=device)
    return model(input_ids=words, pixel_values=pixels, return_loss=True).loss
"""
LLAVA = """
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration
sizes = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4)
vision = CLIPVisionConfig(image_size=64, patch_size=16, **sizes)
text = LlamaConfig(vocab_size=4096, **sizes)
model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=7))
def loss(device):
    words = torch.full((8, 144), 11)
    words[:, 1:17] = 7
    words = words.to(device)
    pixels = torch.randn(8, 3, 64, 64, device=device)
    return model(input_ids=words, pixel_values=pixels, labels=words).loss
"""
WHISPER = """
from transformers import WhisperConfig, WhisperForConditionalGeneration
config = WhisperConfig(vocab_size=4096, d_model=256, encoder_layers=3, decoder_layers=3, encoder_attention_heads=4,
                       decoder_attention_heads=4, encoder_ffn_dim=1024, decoder_ffn_dim=1024, max_source_positions=200,
                       pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
model = WhisperForConditionalGeneration(config)
def loss(device):
    sound = torch.randn(8, 80, 400, device=device)
    return model(input_features=sound, labels=torch.randint(3, 4096, (8, 64), device=device)).loss
"""
DIFFUSION = """
class Block(torch.nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(width, after, 3, padding=1) for width in (before, after))
        self.norm, self.time = torch.nn.GroupNorm(8, after), torch.nn.Linear(64, after)
    def forward(self, x, time):
        x = self.first(x) + self.time(time)[:, :, None, None]
        return self.second(torch.nn.functional.silu(self.norm(x)))
class UNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down = torch.nn.ModuleList([Block(3, 32), Block(32, 64), Block(64, 128)])
        self.attention = torch.nn.MultiheadAttention(128, 4, batch_first=True)
        self.up = torch.nn.ModuleList([Block(192, 64), Block(96, 32)])
        self.out = torch.nn.Conv2d(32, 3, 1)
    def forward(self, x, time):
        kept = []
        for number, block in enumerate(self.down):
            x = block(torch.nn.functional.avg_pool2d(x, 2) if number else x, time)
            kept.append(x)
        flat = kept.pop().flatten(2).transpose(1, 2)
        x = (flat + self.attention(flat, flat, flat, need_weights=False)[0]).transpose(1, 2).unflatten(2, x.shape[2:])
        for block in self.up:
            x = block(torch.cat([torch.nn.functional.interpolate(x, scale_factor=2), kept.pop()], 1), time)
        return self.out(x)
model = UNet()
def loss(device):
    image, noise = (torch.randn(8, 3, 32, 32, device=device) for _ in range(2))
    steps = torch.rand(8, 1, device=device)
    share = steps[:, :, None, None]
    seen = model(image * (1 - share) + noise * share, torch.sin(steps * torch.arange(64, device=device)))
    return torch.nn.functional.mse_loss(seen, noise)
"""
STEPS = """
model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss("cuda").backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SHARE = 0.01


@pytest.mark.parametrize(
    "model", [CLIP, LLAVA, WHISPER, DIFFUSION], ids=["clip", "llava", "whisper", "diffusion"]
)
def test_the_stand_ins_allocate_what_a_cpu_does(
    model: str, warm_python: Path, tmp_path: Path
) -> None:
    run = probe.runs(warm_python, probe.stand_ins(warm_python), tmp_path)
    code = f"import torch\n{model}{STEPS}"
    ran = run(code)
    assert ran.returncode == 0, ran.stderr
    real = run(code, XMEM_ENGINE="profile", OMP_NUM_THREADS="2")
    assert real.returncode == 0, real.stderr
    (file,) = (tmp_path / "traces").glob(f"*{recording.SUFFIX}")
    on_cpu = replay(orchestrate(recording.read(file))).peak_allocated_bytes
    assert replay(ran.trace).peak_allocated_bytes == pytest.approx(on_cpu, rel=SHARE)
