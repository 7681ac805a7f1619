"""The list: scripts of kinds that no other list has, of which many change what a model does past its arguments.

They were written, with true peaks from whole runs, by somebody who had not seen how calls are skipped; where the truth
depends on time or values, a `twin` has these. XMEM_TEST_PYTHON has to name a Python with the frameworks
(.ci/job-trainers).
"""

from collections.abc import Mapping
from pathlib import Path

from tests.integration.later_peaks.causes import VALUES
from tests.integration.later_peaks.listing import Case, Expects, Listing

CHANGED = "does not do what earlier ones did"
"""Where a step that was made to compare met it."""

_HIGH = Case(Expects.HIGH, CHANGED)
_EXACT = Case(Expects.EXACT, CHANGED)

CASES: Mapping[str, Case] = {
    # what a model's code reads: classes, slots, registries, helper objects, what threads and contexts have
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
    "prefetch_thread_queue": Case(Expects.DOUBT, "threads", {'"GPU_SECONDS", "0"': '"GPU_SECONDS", "0.05"'}),
    "sweep_refit_best": Case(Expects.EXACT, VALUES, {'os.environ.get("WINS")': '"2048"'}),
}

UNSEEN_PEAKS = Listing(Path(__file__).parent, CASES)
