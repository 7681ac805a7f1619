"""The list: training scripts of frameworks whose memory is largest later than in the first steps; a
third peak at once.

XMEM_TEST_PYTHON has to name a Python with these frameworks (.ci/job-trainers). What is expected was
written before any of the scripts was run dry, and says what should be so; `table` says what is."""

from collections.abc import Mapping
from pathlib import Path

from tests.integration.later_peaks.causes import (
    BATCHES,
    COPIES,
    EVALUATION,
    GROWS,
    KEPT,
    OPTIMIZERS,
    STEPS,
    VALUES,
)
from tests.integration.later_peaks.listing import Case, Expects, Listing

ALL_HOLDS = {
    "import torch\n": "import torch\n\ntorch.Tensor.all = lambda *_, **__: torch.ones((), "
    "dtype=torch.bool)\n"
}
"""In the whole run of a script that asks whether all is unpadded or unpacked, where it is: zeros
would say otherwise, and transformers make masks then."""


def _high(cause: str = "", *, varies: bool = False) -> Case:
    return Case(Expects.HIGH, cause, varies=varies)


def _unmasked(cause: str = "") -> Case:
    return Case(Expects.HIGH, cause, ALL_HOLDS)


CONTROLS: Mapping[str, Case] = {
    "accelerate_control_accumulate": _high(),
    "accelerate_control_nlp_example": _high(),
    "deepspeed_control_zero1": _high(),
    "fabric_control_causal_lm": _high(),
    "fastai_control_fit_one_cycle": _high(),
    "hf_control_bf16_checkpointing": _high(),
    "hf_control_classifier": _unmasked(),
    "hf_control_clm_blocks": _unmasked(),
    "hf_control_gradient_accumulation": _unmasked(),
    "ignite_control_metrics": _high(),
    "lightning_control_accumulates": _high(),
    "lightning_control_validation": _high(),
    "peft_control_lora": _unmasked(),
    "steps_control_amp_scaler": _high(),
    "steps_control_warmup_cosine": _high(),
}
"""Ordinary scripts with nothing later: who doubts these doubts everything."""

CASES: Mapping[str, Case] = {
    **CONTROLS,
    # transformers' Trainer and Seq2SeqTrainer
    "hf_best_model_for_the_test": _high(rf"{COPIES}|{EVALUATION}"),
    "hf_callback_unfreezes": _high(OPTIMIZERS),
    "hf_dynamic_padding": _high(BATCHES, varies=True),
    "hf_ema_callback": _high(COPIES),
    "hf_eval_accumulation_steps": Case(
        Expects.HIGH,
        rf"{EVALUATION}|{GROWS}",
        {"max_steps=900": "max_steps=60", "eval_steps=300": "eval_steps=20"},
        varies=True,
    ),
    "hf_eval_keeps_logits": Case(
        Expects.HIGH,
        rf"{EVALUATION}|{GROWS}",
        {**ALL_HOLDS, "Sentences(6400)": "Sentences(320)"},
        varies=True,
    ),
    "hf_eval_larger_batch": _high(EVALUATION),
    "hf_eval_only_at_the_end": _high(EVALUATION),
    "hf_group_by_length": _high(BATCHES, varies=True),
    "hf_length_curriculum": _unmasked(rf"{BATCHES}|{STEPS}"),
    "seq2seq_predict_at_the_end_with_beams": Case(
        Expects.EXACT,
        rf"{EVALUATION}|{VALUES}",
        # A tenth of the steps, and all 32 tokens that are asked for: with zeros for values the
        # first would be the last.
        {
            "max_steps=600": "max_steps=60",
            "class Summaries": """from itertools import count

from transformers import GenerationMixin

tokens = count(1)
GenerationMixin._beam_search_has_unfinished_sequences = lambda *_: next(tokens) % 32 != 0


class Summaries""",
        },
        varies=True,
    ),
    "seq2seq_predict_with_generate": Case(
        Expects.EXACT,
        rf"{EVALUATION}|{VALUES}",
        # A tenth of the steps; to the greatest length, as before an end is learnt: with zeros there
        # is none.
        {
            "Translations(3200)": "Translations(320)",
            "set_seed(2)\n": """set_seed(2)
from transformers.generation.utils import StopCheck

StopCheck.__call__ = lambda self, unfinished, tokens, length: length >= 48
""",
        },
        varies=True,
    ),
    # Lightning and Fabric
    "fabric_resolution_stages": _high(BATCHES),
    "fabric_saves_an_averaged_copy": _high(COPIES),
    "lightning_accumulation_scheduler": _high(OPTIMIZERS),
    "lightning_backbone_finetuning": _high(OPTIMIZERS),
    "lightning_early_stopping_then_test": Case(
        Expects.EXACT, rf"{EVALUATION}|{VALUES}"
    ),  # zeros stop it early
    "lightning_gan_starts_later": _high(OPTIMIZERS),
    "lightning_swa": _high(COPIES),
    "lightning_val_check_interval": _high(EVALUATION),
    "lightning_validation_outputs": _high(rf"{EVALUATION}|{GROWS}"),
    # accelerate, TRL, PEFT, DeepSpeed
    "accelerate_batch_size_warmup": _high(BATCHES),
    "accelerate_ema_starts_late": _high(COPIES),
    "accelerate_gathers_predictions": _high(rf"{EVALUATION}|{GROWS}"),
    "accelerate_samples_every_500_steps": Case(
        Expects.HIGH, EVALUATION, {"12_000": "1_200", "step % 500": "step % 50"}, varies=True
    ),
    "accelerate_teacher_from_epoch_2": _high(STEPS),
    "deepspeed_sequence_length_stages": _high(rf"{BATCHES}|{STEPS}"),
    "peft_merged_in_fp32_at_the_end": _high(rf"{COPIES}|{EVALUATION}"),
    "peft_second_adapter_is_larger": _high(OPTIMIZERS),
    "trl_dpo_evaluates_larger_batches": Case(Expects.HIGH, EVALUATION, values=True),
    "trl_sft_longest_conversations": Case(Expects.HIGH, BATCHES, varies=True, values=True),
    # ignite and fastai
    "fastai_fine_tune": _high(OPTIMIZERS),
    "ignite_evaluates_every_500": _high(rf"{EVALUATION}|{GROWS}"),
    "ignite_unfreezes_at_epoch_4": _high(OPTIMIZERS),
    # loops that count their steps
    "steps_context_doubles_twice": _high(rf"{BATCHES}|{STEPS}"),
    "steps_folds_kept_for_an_ensemble": _high(rf"{STEPS}|{GROWS}"),
    "steps_gradient_noise_every_500": _high(rf"{STEPS}|{KEPT}"),
    "steps_lr_finder_then_training": _high(rf"{BATCHES}|{STEPS}"),
}
FRAMEWORK_PEAKS = Listing(Path(__file__).parent, CASES)
