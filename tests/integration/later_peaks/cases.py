"""The list: ordinary scripts whose memory is largest later than in the first equal steps, and some
where it is not."""

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


def _high(cause: str, *, varies: bool = False) -> Case:
    return Case(Expects.HIGH, cause, varies=varies)


CONTROLS: Mapping[str, Case] = {
    "control_eval_same_batch": Case(Expects.HIGH),
    "control_inference": Case(Expects.HIGH),
    "control_longest_first": Case(Expects.HIGH, varies=True),
    "control_lr_schedule": Case(Expects.HIGH),
    "control_mlp_epochs": Case(Expects.HIGH),
    "control_nanogpt": Case(Expects.HIGH),
    "control_sam": Case(Expects.HIGH),
    "control_small_last_batch": Case(Expects.HIGH),
}
"""Ordinary scripts with nothing later: who doubts these doubts everything."""

CASES: Mapping[str, Case] = {
    **CONTROLS,
    "control_long_and_equal": Case(
        Expects.DOUBT, STEPS, {"range(100_000)": "range(100)"}
    ),  # its end is too far
    # schedules and curricula
    "auxiliary_loss_at_step_1500": _high(STEPS),
    "batch_doubles_at_epoch_2": _high(BATCHES),
    "batch_doubles_at_step_500": _high(BATCHES),
    "batch_ramps_up": _high(BATCHES, varies=True),
    "checkpointing_switched_off": _high(STEPS),
    "fine_tune_at_high_resolution": _high(BATCHES),
    "length_curriculum": _high(BATCHES),
    "progressive_resolution": Case(
        Expects.EXACT, BATCHES
    ),  # cuDNN's workspaces keep it from "high"
    # shapes that vary
    "batches_by_tokens": _high(BATCHES, varies=True),
    "buckets_in_random_order": _high(BATCHES, varies=True),
    "graphs_of_all_sizes": _high(BATCHES, varies=True),
    "lengths_ascending": _high(BATCHES, varies=True),
    "lengths_random": _high(BATCHES, varies=True),
    "rare_tail_1_in_400": _high(BATCHES),
    "rare_tail_1_in_50": _high(BATCHES),
    "rare_tail_in_a_large_data_set": Case(
        Expects.DOUBT, BATCHES, {"SAMPLES = 400_000": "SAMPLES = 640"}, varies=True
    ),
    "stream_of_documents": _high(BATCHES, varies=True),
    # evaluation
    "eval_after_30000_steps": Case(Expects.DOUBT, EVALUATION, {"30_000": "30"}),
    "eval_after_a_long_epoch": Case(
        Expects.EXACT, EVALUATION, {"480_000": "480", "range(10)": "range(3)"}
    ),
    "eval_at_the_end_only": _high(EVALUATION),
    "eval_each_epoch_larger_batch": _high(EVALUATION),
    "eval_every_200_steps": _high(EVALUATION),
    "eval_from_epoch_5_on": Case(Expects.EXACT, EVALUATION),  # cuDNN
    "eval_keeps_all_logits": _high(rf"{EVALUATION}|{GROWS}"),
    "eval_with_generate": _high(EVALUATION, varies=True),
    "eval_without_no_grad": _high(rf"{EVALUATION}|{GROWS}"),
    "final_test_larger_batch": _high(EVALUATION),
    "gpt2_generates_after_each_epoch": Case(
        Expects.EXACT, EVALUATION, varies=True, values=True
    ),  # beam search
    "retrieval_metrics_at_the_end": _high(EVALUATION),
    "validation_at_four_times_the_length": _high(EVALUATION),
    # checkpoints and copies
    "best_model_for_the_test": _high(COPIES),
    "best_weights_on_the_gpu": _high(COPIES),
    "checkpoint_through_a_gpu_copy": _high(COPIES),
    "ema_from_epoch_1": _high(COPIES),
    "resume_from_checkpoint": Case(
        Expects.HIGH,
        COPIES,
        {
            "train(model, optimizer, checkpoint": (
                'for state in optimizer.state.values():\n    state["step"] = torch.tensor(200.0)\n'
                "train(model, optimizer, checkpoint"
            )
        },
    ),
    "snapshots_of_each_epoch": _high(rf"{COPIES}|{GROWS}"),
    "swa_at_the_end": Case(
        Expects.HIGH,
        COPIES,
        {
            'update_bn(DataLoader(data, batch_size=3200), averaged, device=torch.device("cuda"))': (
                "with torch.no_grad():\n    [averaged.train()(x.cuda()) for x, _ in "
                "DataLoader(data, batch_size=3200)]"
            )
        },
    ),
    # memory that grows
    "inference_keeps_features": _high(GROWS),
    "leak_over_20000_steps": Case(Expects.DOUBT, GROWS),
    "losses_kept_with_their_graphs": _high(GROWS),
    "outputs_of_all_steps": _high(GROWS),
    "replay_buffer_fills": _high(GROWS),
    # optimizers and phases
    "adam_after_sgd": _high(OPTIMIZERS),
    "adversarial_loss_later": _high(OPTIMIZERS),
    "gan_with_five_critic_steps": _high(OPTIMIZERS),
    "gradient_accumulation_128": _high(OPTIMIZERS),
    "lazy_regularization": _high(STEPS),
    "lbfgs_history": Case(
        Expects.DOUBT,
        VALUES,
        # Every inner product positive, as where the loss goes down: the zeros of the stand-ins
        # would end it at once.
        {
            "import torch\n": "import torch\n\ntorch.Tensor.dot = lambda *_: torch.ones(())\n",
            "history_size=50": "history_size=50, tolerance_grad=-1, tolerance_change=-1",
        },
    ),
    "lora_merged_at_the_end": _high(COPIES),
    "teacher_from_epoch_2": _high(STEPS),
    "unfreeze_at_epoch_3": _high(OPTIMIZERS),
    "unfreeze_layer_by_layer": _high(OPTIMIZERS),
    # several trainings
    "early_stopping_then_refit": Case(Expects.EXACT, rf"{VALUES}|{STEPS}"),  # zeros stop it early
    "k_fold": _high(STEPS),
    "loops_end_at_max_steps": _high(EVALUATION),
    "pretrain_empty_cache_fine_tune": _high(STEPS),
    "second_model_after_the_first": _high(STEPS),
    "sweep_over_widths": _high(STEPS),
    # loops by step and by time
    "histograms_every_300_steps": _high(STEPS),
    "nanogpt_samples_at_250": _high(EVALUATION, varies=True),
    "sample_every_200_steps": _high(EVALUATION),
    "trains_for_an_hour": Case(
        Expects.DOUBT, rf"time|clock|{EVALUATION}", {"HOUR = 3600": "HOUR = 6"}
    ),
    # what the loops' own lines do not say
    "average_by_a_step_hook": Case(Expects.HIGH, COPIES, {"4000": "40", "8000": "80"}),
    "batch_doubles_between_epochs": Case(Expects.DOUBT, BATCHES, {"3000": "30"}),
    "buckets_in_ascending_order": Case(Expects.HIGH, BATCHES, {"40000": "400"}),
    "callback_unfreezes_at_epoch_3": _high(OPTIMIZERS),
    "context_manager_tests": Case(Expects.DOUBT, EVALUATION, {"range(20000)": "range(20)"}),
    "copies_of_60_epochs": Case(Expects.HIGH, rf"{COPIES}|{KEPT}", {"16000": "160"}),
    "counter_in_a_dictionary": Case(Expects.HIGH, STEPS, {"9000": "90", "4000": "40"}),
    "counts_without_an_end": Case(Expects.HIGH, STEPS, {"8000": "80", "4000": "40"}),
    "curriculum_by_a_property": Case(Expects.DOUBT, STEPS, {"8000": "80", "10000": "100"}),
    "data_set_told_the_epoch": _high(BATCHES),
    "deep_module_starts_later": Case(Expects.HIGH, STEPS, {"8000": "80", "4000": "40"}),
    "else_of_the_loop_tests": Case(Expects.DOUBT, EVALUATION, {"range(20000)": "range(20)"}),
    "embeddings_compared_at_the_end": Case(Expects.DOUBT, STEPS, {"range(20000)": "range(20)"}),
    "epoch_asked_in_the_inner_loop": _high(STEPS),
    "generator_of_lengths": Case(Expects.DOUBT, BATCHES, {"each=3000": "each=30"}),
    "layers_thawed_one_by_one": _high(OPTIMIZERS),
    "outputs_of_every_50th_step": Case(
        Expects.DOUBT, KEPT, {"50000": "1000", "step % 50 ": "step % 1 "}
    ),
    "own_optimizer_preconditions_later": Case(Expects.HIGH, STEPS, {"8000": "80", "4000": "40"}),
    "sampler_ramps_up": _high(BATCHES),
    "stream_in_stages": Case(Expects.DOUBT, rf"{BATCHES}|{STEPS}", {"9000": "90", "6000": "60"}),
    "views_by_chance_from_epoch_2": _high(STEPS),
    # and the like
    "doubles_the_batch_until_it_fails": Case(
        Expects.DOUBT, r"out of memory|OutOfMemory|as much|limit", truth=False
    ),
    "experts_padded_to_the_busiest": Case(
        Expects.DOUBT,
        rf"{VALUES}|expert|bincount",
        # The same 200 steps on a CPU: 651 tokens at the busiest expert, in step 105.
        {
            "torch.bincount(expert, minlength=EXPERTS).tolist()": "[651] * EXPERTS",
            "(expert == number).nonzero().squeeze(1)[:count]": 'torch.arange(count, device="cuda")',
        },
        varies=True,
    ),
    "inference_with_growing_inputs": _high(BATCHES),
    "ppo_rollouts_then_updates": Case(
        Expects.HIGH,
        STEPS,
        {
            "import torch\n": "import torch\n\ntorch.distributions.Distribution.set_default_validate_args(False)\n",
            "torch.distributions.Normal(policy(observation), 1.0).sample()": "torch.randn_like(policy(observation))",
        },
    ),
    "skips_batches_that_do_not_fit": Case(Expects.EXACT, BATCHES),
}
LATER_PEAKS = Listing(Path(__file__).parent, CASES)
