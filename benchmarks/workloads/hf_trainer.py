"""A Llama trained by transformers' Trainer, its arguments from the command line."""

from dataclasses import dataclass

from llama import Texts, llama
from transformers import HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Model:
    """Which one is trained."""

    shape: str = "small"


def main() -> None:
    wanted, arguments = HfArgumentParser((Model, TrainingArguments)).parse_args_into_dataclasses()
    Trainer(model=llama(wanted.shape), args=arguments, train_dataset=Texts(wanted.shape)).train()


main()
