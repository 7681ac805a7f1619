"""Published weights that a job would download: others of their shape take their place where the model's code is here.

torchvision knows the models behind its addresses, also where a script has copied one of them: they are built without
values to learn the shapes, and zeros are handed out. timm builds the model before it asks for weights: it keeps those
it has. What comes with its own description from a hub (transformers, diffusers) is refused as it was.
"""

import functools
import importlib
import inspect
import sys

from _xmem import imports
from _xmem.process import network

_given = {}


def install(torch):
    """Hand out from here on; torchvision takes the function when it is imported."""
    hub = sys.modules["torch.hub"]
    load = hub.load_state_dict_from_url

    @functools.wraps(load)
    def loaded(url, model_dir=None, map_location=None, *args, **kwargs):
        try:
            return load(url, model_dir, map_location, *args, **kwargs)
        except OSError:
            name, shapes = _of_torchvision(torch, url)
            if shapes is None:
                raise
        _note(name)
        device = map_location if isinstance(map_location, (str, torch.device)) else "cpu"
        return {key: torch.zeros(each.shape, dtype=each.dtype, device=device) for key, each in shapes.items()}

    hub.load_state_dict_from_url = loaded
    imports.after("torch.utils.model_zoo", lambda zoo: setattr(zoo, "load_url", loaded))
    imports.after("timm.models._builder", _keep_of_timm)


def doubts():
    """Return whose weights were not there, in the form of a trace's doubts."""
    return [{"code": "stand-in-weights", "detail": name, "count": count} for name, count in _given.items()]


def _note(name):
    network.forget()
    _given[name] = _given.get(name, 0) + 1


def _of_torchvision(torch, url):
    """Return (name, state of a model without values) of the model whose weights are at `url`, or (None, None).

    "resnet50-0676ba61.pth": what follows the hyphen is a digest, and is another for other weights of the same model.
    """
    try:
        models = importlib.import_module("torchvision.models")
        published = [(name, each) for name in models.list_models() for each in models.get_model_weights(name)]
    except (ImportError, AttributeError):  # no torchvision, or one older than 0.14
        return None, None
    stem = _stem(url)
    for name, weights in published:
        if _stem(weights.url) == stem and weights.meta.get("categories") and not name.startswith("quantized_"):
            build = models.get_model_builder(name)
            known = inspect.signature(build).parameters
            options = {key: value for key, value in _AS_PUBLISHED.items() if key in known}
            options["num_classes"] = len(weights.meta["categories"])
            if name.startswith("vit_"):  # one has a position for each part of the picture
                options["image_size"] = weights.meta["min_size"][0]
            try:
                with torch.device("meta"):
                    return name, build(weights=None, **options).state_dict()
            except (NotImplementedError, RuntimeError):  # it reads a value of a tensor as it is built
                return name, build(weights=None, **options).state_dict()
    return None, None


_AS_PUBLISHED = {"weights_backbone": None, "aux_loss": True}


def _stem(url):
    return url.rpartition("/")[2].rpartition("-")[0]


def _keep_of_timm(builder):
    load = builder.load_pretrained

    @functools.wraps(load)
    def loaded(model, *args, **kwargs):
        try:
            load(model, *args, **kwargs)
        except Exception:
            if not network.missing():
                raise
            _note(type(model).__name__)

    builder.load_pretrained = loaded
