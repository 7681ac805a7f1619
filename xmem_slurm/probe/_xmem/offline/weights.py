"""Published weights that a job would download: others of their shape take their place where the
model's code is here.

torchvision knows the models behind its addresses, also where a script has copied one of them: they
are built without values to learn the shapes, and zeros are handed out. timm builds the model before
it asks for weights: it keeps those it has. What comes with its own description from a hub
(transformers, diffusers) is refused as it was.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

from _xmem import doubts
from _xmem.process import network

if TYPE_CHECKING:
    from types import ModuleType

    from _xmem.annotations import Function, Module, Tensor


def loaded(load: Function, _hub: ModuleType) -> Function:
    """Around torch.hub's load_state_dict_from_url; torchvision takes the function when it is
    imported.
    """
    torch = sys.modules["torch"]

    @functools.wraps(load)
    def loaded(
        url: str,
        model_dir: str | None = None,
        map_location: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        try:
            return load(url, model_dir, map_location, *args, **kwargs)
        except OSError:
            model = _of_torchvision(torch, url)
            if model is None:
                raise
        name, shapes = model
        _note(name)
        device = map_location if isinstance(map_location, (str, torch.device)) else "cpu"
        return {
            key: torch.zeros(weight.shape, dtype=weight.dtype, device=device)
            for key, weight in shapes.items()
        }

    return loaded


def _note(name: str) -> None:
    network.forget()
    doubts.note("stand-in-weights", name)


def _of_torchvision(torch: ModuleType, url: str) -> tuple[str, dict[str, Tensor]] | None:
    """Return (name, state of a model without values) of the model whose weights are at `url`, or
    None.

    "resnet50-0676ba61.pth": what follows the hyphen is a digest, and is another for other weights
    of the same model.
    """
    try:
        models = importlib.import_module("torchvision.models")
        published = [
            (name, weights)
            for name in models.list_models()
            for weights in models.get_model_weights(name)
        ]
    except (ImportError, AttributeError):  # no torchvision, or one older than 0.14
        return None
    stem = _stem(url)
    for name, weights in published:
        if (
            _stem(weights.url) == stem
            and weights.meta.get("categories")
            and not name.startswith("quantized_")
        ):
            build = models.get_model_builder(name)
            parameters = inspect.signature(build).parameters
            options = {key: value for key, value in _AS_PUBLISHED.items() if key in parameters}
            options["num_classes"] = len(weights.meta["categories"])
            if name.startswith("vit_"):  # one has a position for each part of the picture
                options["image_size"] = weights.meta["min_size"][0]
            try:
                with torch.device("meta"):
                    return name, build(weights=None, **options).state_dict()
            except (
                NotImplementedError,
                RuntimeError,
            ):  # it reads a value of a tensor as it is built
                return name, build(weights=None, **options).state_dict()
    return None


_AS_PUBLISHED: dict[str, Any] = {"weights_backbone": None, "aux_loss": True}


def _stem(url: str) -> str:
    return url.rpartition("/")[2].rpartition("-")[0]


def kept_of_timm(load: Function, _builder: ModuleType) -> Function:
    """Around what loads weights into a model of timm's that is built: it keeps those that it
    has.
    """

    @functools.wraps(load)
    def loaded(model: Module, *args: Any, **kwargs: Any) -> None:
        try:
            load(model, *args, **kwargs)
        except Exception as error:
            if not network.missing(error):
                raise
            _note(type(model).__name__)

    return loaded
