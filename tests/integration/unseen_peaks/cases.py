"""The list: scripts of kinds that no other list has, of which many change what a model does past
its arguments.

They were written, with true peaks from whole runs, by somebody who had not seen how calls are
skipped; where the truth depends on time or values, a `twin` has these. XMEM_TEST_PYTHON has to name
a Python with the frameworks (.ci/job-trainers)."""

from collections.abc import Mapping
from pathlib import Path

from tests.integration.later_peaks.causes import VALUES
from tests.integration.later_peaks.listing import Case, Expects, Listing

NUMBER = "not drawn here"
CHANGED = "does not do what earlier ones did"
"""Where a step that was made to compare met it."""

_HIGH = Case(Expects.HIGH, CHANGED)
_EXACT = Case(Expects.EXACT, CHANGED)
_VARIES = Case(Expects.HIGH, CHANGED, varies=True)

CASES: Mapping[str, Case] = {
    # what a model's code reads: classes, slots, registries, helper objects, what threads and
    # contexts have
    "accelerate_slots_attr": _HIGH,
    "custom_autograd_function_global": _HIGH,
    "distillation_contextvar": _HIGH,
    "fastai_class_config": _HIGH,
    "function_static_counter": _HIGH,
    "helper_with_rng": _HIGH,
    "hf_trainer_kaggle_cfg": _HIGH,
    "ignite_helper": _EXACT,
    "kaggle_cfg_class": _EXACT,
    "layerdrop_list_of_rngs": _HIGH,
    "lightning_current_epoch": _HIGH,
    "mp_value_epoch": _HIGH,
    "registry_reads_global": _HIGH,
    "rng_in_dict": _HIGH,
    "singleton": _HIGH,
    "slots_dataclass_state": _HIGH,
    "thread_local_context": _HIGH,
    "weakref_to_trainer": _HIGH,
    # what lives on outside of models
    "features_of_the_epoch": _HIGH,
    "helper_collects_maps": _HIGH,
    "helper_memory_bank": _HIGH,
    "moco_queue": _HIGH,
    "state_reset": _HIGH,
    # the rest of a step: second derivatives, streams, hooks, changes of a model
    "eval_on_side_stream": _HIGH,
    "fabric_multitask_pcgrad": _EXACT,
    "force_field": _HIGH,
    "gan_r1_lazy": _HIGH,
    "growing_net_and_prune": _HIGH,
    "lightning_diffusion_ema": _HIGH,
    "maml_func": _HIGH,
    "offload_hooks_then_without": _EXACT,
    "progressive_gan_module_config": _EXACT,
    "qat_then_convert": _HIGH,
    "reduce_on_plateau_unfreezes": Case(Expects.DOUBT),
    # data and values
    "audio_ctc_lstm": _EXACT,
    "dqn": _EXACT,
    "function_in_list_of_losses": _EXACT,
    "gpu_buffer_by_data": Case(Expects.DOUBT, VALUES),
    "segmentation_sliding_window": _EXACT,
    "trim_by_mask": _HIGH,
    # what hangs on the clock, on the best of several, on actions, on threads
    "clock_again": Case(Expects.HIGH, "", {'"EVAL_SECONDS", "600"': '"EVAL_SECONDS", "0.5"'}),
    "lightning_every_30_minutes": Case(Expects.HIGH, "", {'"EVERY", 1800': '"EVERY", 1'}),
    "ppo_continuous_envs": Case(
        Expects.DOUBT,
        VALUES,
        {
            "action[i, 0]": "10.0",
            "torch.distributions.Normal(mu, 0.1).sample()": "(mu + torch.randn_like(mu))",
        },
    ),
    "prefetch_thread_queue": Case(
        Expects.DOUBT, "threads", {'"GPU_SECONDS", "0"': '"GPU_SECONDS", "0.05"'}
    ),
    "sweep_refit_best": Case(Expects.EXACT, VALUES, {'os.environ.get("WINS")': '"2048"'}),
    # which outputs have a gradient, which function has a name, what is kept, grown, swapped, begun
    # again
    "accum_changes": _HIGH,
    "alloc_settings": _VARIES,
    "anomaly_periodic": _HIGH,
    "aux_fp16_scaler_late": _HIGH,
    "aux_late_autocast": Case(Expects.EXACT, "was not recorded"),
    "backward_inputs_autocast": _HIGH,
    "class_forward_patched": _HIGH,
    "clip_text_gather": _EXACT,
    "detach_branch_nocast": _HIGH,
    "diffusion_samples": _HIGH,
    "distill_hidden_late": Case(Expects.DOUBT, "was not recorded"),
    "fold_cycles": Case(Expects.DOUBT, "garbage"),
    "generate_by_hand": _VARIES,
    "grow_data_adam": _HIGH,
    "head_grown_by_data": _HIGH,
    "lora_merge_cycles": _HIGH,
    "loss_switch_expanded": _HIGH,
    "mem_info_batch": _HIGH,
    "mtl_heads_autocast": Case(Expects.EXACT, "was not recorded"),
    "oom_halving": _HIGH,
    "parametrize_cached": _HIGH,
    "prototypes_grow": _HIGH,
    "retain_two_losses": _EXACT,
    "sdpa_monkeypatch": _HIGH,
    "splats": _HIGH,
    "step_in_backward": _HIGH,
    "swap_lookahead_sam": _HIGH,
    "tbptt_grows": _HIGH,
    "vmap_grads_late": _EXACT,
    "wgan_inputs": _HIGH,
    # what is in the data, and who gives them; sparse gradients
    "adagrad_sparse": Case(Expects.EXACT, "", {"range(120)": "range(3)"}, values=True),
    "buckets_slowest": _VARIES,
    "cpu_count_envs": Case(Expects.HIGH, "", {"os.cpu_count()": "32", "range(60)": "range(3)"}),
    "detection_boxes": _VARIES,
    "features_slower": _HIGH,
    "graphs_scatter": _VARIES,
    "iterable_shard_by_worker": _VARIES,
    "map_style_by_worker": _VARIES,
    "rl_variable_rollouts": _VARIES,
    "sparse_adam_lengths": Case(
        Expects.EXACT, "", {"range(1000)": "range(770, 785)"}, varies=True, values=True
    ),
    "sparse_bag_sgd": Case(
        Expects.EXACT,
        "",
        {"range(6000)": "range(600)", "range(4)": "range(2)"},
        varies=True,
        values=True,
    ),
    "trim_slower": _VARIES,
    # numbers that are not known: what a loop ends by, what a size is computed from
    "checkpoint_by_loss_spike": Case(
        Expects.DOUBT, VALUES, {"l > 1.2 * mean and step > 100": "step in (300, 500)"}
    ),
    "deq_function": Case(
        Expects.DOUBT, VALUES, {"change.item() < tol": "False", "range(300)": "range(3)"}
    ),
    "gns_batch": Case(Expects.DOUBT, VALUES, {"s / (g2 + 1e-8)": "5000"}),
    "gpu_random_length": Case(
        Expects.DOUBT, NUMBER, {'device="cuda").item()': 'device="cpu").item()'}
    ),
    "host_nms": Case(
        Expects.DOUBT,
        VALUES,
        {
            "np.flatnonzero(scores[j] > 0.5)": "range(200)",
            "range(40)": "range(2)",
            "range(300)": "range(3)",
        },
    ),
    "sinkhorn_function": Case(
        Expects.EXACT, VALUES, {"error.item() < threshold": "False", "range(300)": "range(3)"}
    ),
    "tts_durations": Case(
        Expects.DOUBT,
        VALUES,
        {
            "d = (torch.exp(logd) - 1).round().clamp(min=0).long()": "d = torch.full((6000,), "
            "5).cuda()"
        },
        values=True,
    ),
}

UNSEEN_PEAKS = Listing(Path(__file__).parent, CASES)
