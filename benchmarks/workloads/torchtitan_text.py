"""Writes a tokenizer and a text to the working folder: what torchtitan's own debug configuration
trains on (torchtitan 0.2).
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

words = {f"t{number}": number for number in range(98)} | {"<s>": 98, "</s>": 99}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
Path("tokenizer").mkdir()
tokenizer.save("tokenizer/tokenizer.json")
special = {"bos_token": "<s>", "eos_token": "</s>"}
Path("tokenizer/tokenizer_config.json").write_text(json.dumps(special))
Path("tests/assets/c4_test").mkdir(parents=True)
text = json.dumps({"text": 3000 * "t1 t2 "}) + "\n"
Path("tests/assets/c4_test/data.json").write_text(20 * text)
