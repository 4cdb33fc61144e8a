"""Choosing the layers in a loaded model, or refusing to capture from it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hsstore.capture.hello import Hello
from hsstore.capture.layer_ids import engine_ids, family
from hsstore.capture.releases import refused_options
from hsstore.capture.settings import Layer, Refused
from hsstore.capture.spool_format import DTYPES


def described(hello: Hello, layers: Sequence[Layer], runner: Any) -> Hello:  # noqa: ANN401
    """The hello with what a ModelRunner says about its model.

    Raises Refused or UnknownLayerIds where the model, its dtype or a launch option is none that
    the plugin captures under.
    """
    options = list(refused_options(runner.server_args))
    if options:
        raise Refused(f"hsstore captures nothing under {', '.join(options)}")
    config = runner.model_config
    architecture = type(runner.model).__name__
    dtype = str(config.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise Refused(f"hsstore stores no {dtype}")
    numbers = [layer for layer in layers if isinstance(layer, int)]
    return replace(
        hello,
        model_path=runner.server_args.model_path,
        model_type=config.hf_config.model_type,
        architecture=architecture,
        layers=tuple(layers),
        engine_layers=engine_ids(architecture, numbers, config.num_hidden_layers),
        dtype=dtype,
        hidden_size=config.hidden_size,
        norm="post",
    )


def choose_layers(hello: Hello, model: Any) -> None:  # noqa: ANN401
    """Make a model of SGLang collect the hello's layers; Refused where it has no way to."""
    ids = list(hello.engine_layers or ())
    setters = family(type(model).__name__).setters
    has = [setter for setter in setters if hasattr(model, setter)]
    if ids and not has:
        raise Refused(
            f"{type(model).__name__} of SGLang {hello.release} has no {' nor '.join(setters)}"
        )
    if ids:
        getattr(model, has[0])(ids)
