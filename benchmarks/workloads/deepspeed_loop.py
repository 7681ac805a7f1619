"""A Llama trained by DeepSpeed's engine, as its configuration file says."""

import argparse

import deepspeed
from llama import Texts, llama

STEPS = 30


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    given = deepspeed.add_config_arguments(parser).parse_args()
    model = llama()
    engine, _, batches, _ = deepspeed.initialize(
        args=given, model=model, model_parameters=model.parameters(), training_data=Texts()
    )
    for _, batch in zip(range(STEPS), batches, strict=False):
        engine.backward(engine(**{name: words.cuda() for name, words in batch.items()}).loss)
        engine.step()


main()
