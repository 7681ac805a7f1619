"""Random data in the form in which public training scripts expect theirs; run by the job's Python.

    python coverage_data.py RECIPE FOLDER

Small: enough for a few steps of each script in benchmarks/coverage.toml. What a script checks by a
digest cannot be put in place like this, CIFAR of torchvision for one.
"""

# ruff: noqa: PLC0415 - most recipes need no torch

import gzip
import json
import pickle
import random
import struct
import sys
import wave
from pathlib import Path

import numpy as np

RANDOM = np.random.default_rng(0)
WORDS = [f"word{number}" for number in range(2000)]


def mnist(folder):
    """MNIST of torchvision, extracted."""
    for part, count in (("train", 6000), ("t10k", 1000)):
        images = struct.pack(">4i", 2051, count, 28, 28) + RANDOM.bytes(count * 28 * 28)
        labels = (
            struct.pack(">2i", 2049, count)
            + RANDOM.integers(10, size=count, dtype=np.uint8).tobytes()
        )
        _write(folder / f"MNIST/raw/{part}-images-idx3-ubyte", images)
        _write(folder / f"MNIST/raw/{part}-labels-idx1-ubyte", labels)


def images(folder, classes=4, count=24, size=320):
    """train/ and val/, a folder a class (torchvision's ImageFolder)."""
    for part in ("train", "val"):
        for label in range(classes):
            flat_images(folder / part / f"class{label}", count, size)


def flat_images(folder, count=64, size=320):
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = RANDOM.integers(256, size=(size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"image_{number}.jpg")


def small_images(folder):
    flat_images(folder, 256, 64)


def pets(folder):
    """The Oxford pets: the label is in the name."""
    flat_images(folder, 128, 256)
    for file in sorted(folder.iterdir()):
        file.rename(
            file.with_name(f"breed{int(file.stem.split('_')[1]) % 4}_{file.stem.split('_')[1]}.jpg")
        )


def bsds(folder):
    for part in ("train", "test"):
        flat_images(folder / "BSDS300/images" / part, 32, 320)


def paired_images(folder):
    """CycleGAN's: two kinds of pictures."""
    for part in ("train/A", "train/B", "test/A", "test/B"):
        flat_images(folder / part, 16, 256)


def masks(folder):
    """Pictures and their masks, of one name."""
    from PIL import Image

    flat_images(folder / "imgs", 16, 640)
    (folder / "masks").mkdir(parents=True, exist_ok=True)
    for file in (folder / "imgs").iterdir():
        Image.fromarray(RANDOM.integers(2, size=(640, 640), dtype=np.uint8)).save(
            folder / "masks" / f"{file.stem}.gif"
        )


def saliency(folder):
    """Pictures and grey masks of one name in two folders (U-2-Net)."""
    from PIL import Image

    flat_images(folder / "im_aug", 48)
    (folder / "gt_aug").mkdir()
    for file in (folder / "im_aug").iterdir():
        Image.fromarray(RANDOM.integers(256, size=(320, 320), dtype=np.uint8)).save(
            folder / f"gt_aug/{file.stem}.png"
        )


def image_patches(folder):
    """train.h5 with patches of one channel, eval.h5 with groups of whole pictures, each in low and
    high resolution.
    """
    import h5py

    with h5py.File(folder / "train.h5", "w") as train, h5py.File(folder / "eval.h5", "w") as test:
        for kind in ("lr", "hr"):
            train[kind] = RANDOM.random((2000, 33, 33), dtype=np.float32) * 255
            for number in range(5):
                test[f"{kind}/{number}"] = RANDOM.random((255, 255), dtype=np.float32) * 255


def coco(folder):
    """COCO of 2017 with its 80 classes: pictures and annotations/instances_*.json."""
    for part in ("train2017", "val2017"):
        flat_images(folder / part, 64, 640)
        images, boxes = [], []
        for number, file in enumerate(sorted((folder / part).iterdir())):
            images.append({"id": number, "file_name": file.name, "height": 640, "width": 640})
            for label in RANDOM.integers(1, 81, size=3).tolist():
                box = [
                    *RANDOM.integers(300, size=2).tolist(),
                    *RANDOM.integers(40, 300, size=2).tolist(),
                ]
                place = {
                    "id": len(boxes) + 1,
                    "image_id": number,
                    "category_id": label,
                    "iscrowd": 0,
                }
                boxes.append(place | {"bbox": box, "area": box[2] * box[3], "segmentation": []})
        classes = [{"id": number, "name": f"class{number}"} for number in range(1, 81)]
        content = {"images": images, "annotations": boxes, "categories": classes}
        _write(folder / f"annotations/instances_{part}.json", json.dumps(content).encode())


def texts(folder):
    """train.txt, valid.txt, test.txt: words in lines."""
    for part, lines in (("train", 4000), ("valid", 400), ("test", 400)):
        _write(
            folder / f"{part}.txt", "\n".join(" ".join(_words(20)) for _ in range(lines)).encode()
        )


def tokens(folder):
    """train.bin and val.bin of 16-bit tokens, and their count of values (nanoGPT)."""
    for part in ("train", "val"):
        _write(folder / f"{part}.bin", RANDOM.integers(65, size=500_000, dtype=np.uint16).tobytes())
    _write(folder / "meta.pkl", pickle.dumps({"vocab_size": 65, "itos": {}, "stoi": {}}))


def token_shards(folder):
    """Shards of tokens as numpy arrays, 'train' or 'val' in the name (build-nanogpt)."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        np.save(
            folder / f"edufineweb_{part}_000000.npy",
            RANDOM.integers(50257, size=4_000_000, dtype=np.uint16),
        )


def tinystories(folder):
    """Tokenized shards of llama2.c."""
    for shard in range(2):
        values = RANDOM.integers(1, 32000, size=400_000, dtype=np.uint16)
        _write(folder / f"TinyStories_all_data/data{shard:02}.bin", values.tobytes())


def cora(folder):
    """cora.content and cora.cites."""
    papers = 2708
    labels = ["Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods"]
    labels += ["Reinforcement_Learning", "Rule_Learning", "Theory"]
    features = (RANDOM.random((papers, 1433)) < 0.01).astype(int)
    rows = ("\t".join([str(n), *map(str, features[n]), labels[n % 7]]) for n in range(papers))
    _write(folder / "cora.content", ("\n".join(rows) + "\n").encode())
    pairs = RANDOM.integers(papers, size=(5429, 2))
    _write(folder / "cora.cites", ("\n".join(f"{a}\t{b}" for a, b in pairs) + "\n").encode())


def planetoid(folder):
    """Cora in the raw form of Planetoid (ind.cora.*)."""
    from scipy import sparse

    def features(count):
        return sparse.csr_matrix((RANDOM.random((count, 1433)) < 0.01).astype(np.float32))

    def one_hot(count):
        return np.eye(7, dtype=np.int32)[RANDOM.integers(7, size=count)]

    graph = {node: [int(other) for other in RANDOM.integers(2708, size=4)] for node in range(2708)}
    known = {"x": features(140), "tx": features(1000), "allx": features(1708), "graph": graph}
    known |= {"y": one_hot(140), "ty": one_hot(1000), "ally": one_hot(1708)}
    for name, value in known.items():
        _write(folder / f"ind.cora.{name}", pickle.dumps(value))
    _write(folder / "ind.cora.test.index", "\n".join(map(str, range(1708, 2708))).encode())


def ett(folder):
    """Hourly transformer temperatures: a date and seven columns, as long as the loaders of ETTh1
    demand.
    """
    from datetime import datetime, timedelta

    start, columns = datetime(2016, 7, 1), ["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"]
    values = RANDOM.normal(size=(17420, 7)).round(3)
    rows = (
        f"{start + timedelta(hours=n)},{','.join(map(str, row))}" for n, row in enumerate(values)
    )
    _write(folder / "ETTh1.csv", "\n".join([",".join(["date", *columns]), *rows]).encode())


def speech(folder):
    """LJSpeech's wavs (22,050 Hz) and the lists that HiFi-GAN reads, beside what its repository
    has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wavs").mkdir(exist_ok=True)
    names = [f"LJ001-{number:04}" for number in range(1, 41)]
    for name in names:
        with wave.open(str(folder / "wavs" / f"{name}.wav"), "wb") as file:
            file.setparams((1, 2, 22050, 0, "NONE", ""))
            file.writeframes(RANDOM.integers(-8000, 8000, size=66150, dtype=np.int16).tobytes())
    lines = "\n".join(f"{name}|some words|some words" for name in names)
    _write(folder / "training.txt", lines.encode())
    _write(folder / "validation.txt", lines.splitlines()[0].encode())


def listed_speech(folder):
    """The same wavs as two lists of paths, beside them (MelGAN)."""
    speech(folder)
    files = [f"wavs/{file.name}" for file in sorted((folder / "wavs").iterdir())]
    _write(folder / "train_files.txt", "\n".join(files[:-8]).encode())
    _write(folder / "test_files.txt", "\n".join(files[-8:]).encode())


def series(folder):
    """exchange_rate.txt: 7,588 days of eight numbers (LSTNet, MTGNN)."""
    rows = (",".join(map(str, row)) for row in RANDOM.random((7588, 8)).round(6))
    _write(folder / "exchange_rate.txt", "\n".join(rows).encode())


def boxes(folder):
    """Pictures with boxes in YOLO's form, and coco128.yaml's place for them."""
    for part in ("train2017",):
        flat_images(folder / "images" / part, 64, 640)
        for file in (folder / "images" / part).iterdir():
            rows = (
                f"{RANDOM.integers(80)} {' '.join(f'{x:.4f}' for x in RANDOM.uniform(0.3, 0.6, 4))}"
                for _ in "abc"
            )
            _write(folder / "labels" / part / f"{file.stem}.txt", "\n".join(rows).encode())


def voc_list(folder):
    """One line a picture: its path, then x1,y1,x2,y2,class of each box."""
    flat_images(folder / "VOCdevkit", 64, 640)
    lines = [
        f"{file.absolute()} 100,100,300,300,{n % 20} 50,60,500,400,3"
        for n, file in enumerate((folder / "VOCdevkit").iterdir())
    ]
    _write(folder / "2007_train.txt", "\n".join(lines).encode())
    _write(folder / "2007_val.txt", "\n".join(lines[:16]).encode())


def conversations(folder):
    """train.jsonl and test.jsonl with a prompt, a completion, a better and a worse one, and plain
    text.
    """
    for part, count in (("train", 200), ("test", 40)):
        rows = (
            {
                "prompt": " ".join(_words(40)),
                "completion": " ".join(_words(80)),
                "chosen": " ".join(_words(80)),
                "rejected": " ".join(_words(80)),
                "instruction": " ".join(_words(20)),
                "input": "",
                "output": " ".join(_words(40)),
            }
            for _ in range(count)
        )
        _write(folder / f"{part}.jsonl", "\n".join(map(json.dumps, rows)).encode())


def instructions(folder):
    """alpaca_data.json: a list of instructions, inputs and outputs (Stanford Alpaca)."""
    rows = [
        {part: " ".join(_words(20)) for part in ("instruction", "input", "output")}
        for _ in range(2000)
    ]
    _write(folder / "alpaca_data.json", json.dumps(rows).encode())


def enwik8(folder):
    """enwik8.gz: 100 MB of bytes, as many as Wikipedia uses."""
    block = RANDOM.integers(32, 237, size=100_000, dtype=np.uint8).tobytes()
    _write(folder / "enwik8.gz", gzip.compress(block * 1000, compresslevel=1))


def headlines(folder):
    """THUCNews: lines of characters and one of ten labels, and the vocabulary
    (Chinese-Text-Classification-Pytorch).
    """
    characters = [chr(0x4E00 + number) for number in range(4760)]
    for part, count in (("train", 20_000), ("dev", 1000), ("test", 1000)):
        lines = (
            f"{''.join(random.choices(characters, k=20))}\t{number % 10}" for number in range(count)
        )
        _write(folder / f"{part}.txt", "\n".join(lines).encode())
    vocabulary = {
        character: number for number, character in enumerate([*characters, "<UNK>", "<PAD>"])
    }
    _write(folder / "vocab.pkl", pickle.dumps(vocabulary))


def triples(folder):
    """FB15k's train.txt, valid.txt, test.txt for the names that its dictionaries have
    (KnowledgeGraphEmbedding).
    """
    names = [
        [line.split("\t")[1] for line in (folder / f"{kind}.dict").read_text().splitlines()]
        for kind in ("entities", "relations")
    ]
    for part, count in (("train", 483_142), ("valid", 2000), ("test", 2000)):
        picked = zip(*(random.choices(names[n], k=count) for n in (0, 1, 0)), strict=True)
        _write(folder / f"{part}.txt", "\n".join(map("\t".join, picked)).encode())


def graphs(folder):
    """MUTAG.txt: 188 graphs, each its size and label, then the tag and the neighbours of each node
    (powerful-gnns).
    """
    lines = ["188"]
    for number in range(188):
        lines += [
            f"18 {number % 2}",
            *(f"{RANDOM.integers(7)} 2 {(n - 1) % 18} {(n + 1) % 18}" for n in range(18)),
        ]
    _write(folder / "MUTAG.txt", "\n".join(lines).encode())


def gpt2_model(folder):
    """A model in GPT-2's shape, with random weights in bf16, and a tokenizer."""
    from transformers import GPT2Config

    _language_model(folder, GPT2Config(bos_token_id=0, eos_token_id=0, pad_token_id=0))


def llama_model(folder):
    """A model in the shape of a small Llama, likewise."""
    from transformers import LlamaConfig

    shape = {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    _language_model(folder, LlamaConfig(**shape, bos_token_id=0, eos_token_id=0, pad_token_id=0))


def _language_model(folder, config):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["<|endoftext|>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = dict.fromkeys(("eos_token", "bos_token", "pad_token", "unk_token"), "<|endoftext|>")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)


def resnet_of_hub(folder):
    """The resnet50d of timm with random weights, where huggingface_hub keeps what it has
    downloaded.
    """
    import timm
    from safetensors.torch import save_file

    snapshot = _snapshot(folder, "timm/resnet50d.ra2_in1k")
    save_file(timm.create_model("resnet50d").state_dict(), snapshot / "model.safetensors")
    config = {
        "architecture": "resnet50d",
        "num_classes": 1000,
        "pretrained_cfg": {"input_size": [3, 256, 256]},
    }
    (snapshot / "config.json").write_text(json.dumps(config))


def vae_of_hub(folder):
    """The autoencoder of Stable Diffusion with random weights, likewise."""
    from diffusers import AutoencoderKL

    blocks = {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "sample_size": 256}
    kinds = {
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
    }
    AutoencoderKL(latent_channels=4, **blocks, **kinds).save_pretrained(
        _snapshot(folder, "stabilityai/sd-vae-ft-ema")
    )


def _snapshot(folder, name):
    kept = folder / f"models--{name.replace('/', '--')}"
    _write(kept / "refs/main", b"0" * 40)
    (kept / "snapshots" / ("0" * 40)).mkdir(parents=True)
    return kept / "snapshots" / ("0" * 40)


def _words(count):
    return random.choices(WORDS, k=count)


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    random.seed(0)
    globals()[sys.argv[1]](Path(sys.argv[2]))
