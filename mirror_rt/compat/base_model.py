"""Offer the arguments, settings, prompts and devices of models of sentence-transformers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Self

from mirror_rt.bundle.families import positions
from mirror_rt.compat.arguments import Device, device_options, refuse
from mirror_rt.compat.saving import Saving
from mirror_rt.errors import ConfigError, require
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.pipeline.prompts import Prompts

logger = logging.getLogger("mirror_rt")

Pool = dict[str, Any]

_IN_THE_BUNDLE = "the bundle holds it; change the model, and run `mirror-rt export MODEL`"
_REFUSED = {
    "modules": _IN_THE_BUNDLE,
    "processor_kwargs": _IN_THE_BUNDLE,
    "config_kwargs": _IN_THE_BUNDLE,
    "keep_in_fp32_modules": "choose the precision by model_kwargs={'variant': ...}",
    "model_card_data": "the bundle's card is README.md in its folder",
}
# They change nothing where the model is a folder.
_OF_HUBS = {
    "token": "set HF_TOKEN",
    "use_auth_token": "set HF_TOKEN",
}
# Of the arguments of transformers those that change no result of a model that does not train.
_WITHOUT_EFFECT = (
    "torch_dtype", "dtype", "attn_implementation", "use_safetensors", "low_cpu_mem_usage",
    "classifier_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob",
)  # fmt: skip
# Members of the original classes that change a model, which these classes do not.
_ELSEWHERE = {
    **dict.fromkeys(("fit", "old_fit"), "tune with `mirror-rt tune`, then export"),
    "save_to_hub": "call push_to_hub",
    "evaluate": "run `mirror-rt evaluate`",
    **dict.fromkeys(("cuda", "half", "bfloat16"), "choose device= or variant= when loading"),
}


class BaseModel(Saving):
    """The members of `sentence_transformers.base.model.BaseModel`, for a loaded bundle."""

    _settings: dict[str, Any]  # of transformers, which change nothing here
    _own_prompts: Mapping[str, str] = MappingProxyType({})  # those that a model always has

    def _load(self, load: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """Load a bundle by the arguments of the constructor; set its prompts and its limit."""
        path = given["model_name_or_path"]
        if not isinstance(path, str | Path):
            raise ConfigError(f"give the folder or the name of a bundle, got {path!r}")
        local, self._settings = Path(path).is_dir(), dict(given["config_kwargs"] or {})
        settings = dict(given["processor_kwargs"] or {})
        most = settings.pop("model_max_length", None)
        others = {name: x for name, x in self._settings.items() if name not in _WITHOUT_EFFECT}
        refused = {**given, "processor_kwargs": settings, "config_kwargs": others}
        refuse(type(self).__name__, _REFUSED | ({} if local else _OF_HUBS), refused)
        options = _load_options(given)
        named: dict[str, Any] = {
            "revision": None if local else given["revision"],
            "offline": given["local_files_only"],
        }
        if given["cache_folder"] is not None and not local:
            path = LoadOptions(**named, **options).find(path, Path(given["cache_folder"]))
            named["revision"] = None
        self._loaded = load(path, **named, **options)
        declared, name = self._prompts, given["default_prompt_name"]
        self._set_prompts(
            Prompts(
                {**self._own_prompts, **declared.by_name, **(given["prompts"] or {})},
                declared.default_name if name is None else name,
            )
        )
        if most is not None:  # more than the model has positions for means all of them
            self.max_seq_length = min(most, positions(self._loaded.description.config) or most)
        return self._loaded

    def get_max_seq_length(self) -> int:
        """Return the most tokens of an input, special tokens included."""
        return self._loaded.max_length

    @property
    def max_seq_length(self) -> int:
        """The most tokens of an input, special tokens included."""
        return self._loaded.max_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        most = self._loaded.manifest.max_length
        if value > most:
            raise ConfigError(
                f"max_seq_length {value} is above the {most} tokens of the bundle: export it again "
                f"with `mirror-rt export --max-length {value}`"
            )
        self._limit(value)

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts by name."""
        return dict(self._prompts.by_name)

    @prompts.setter
    def prompts(self, value: Mapping[str, str]) -> None:
        self._set_prompts(Prompts(value, self.default_prompt_name))

    @property
    def default_prompt_name(self) -> str | None:
        """The name of the prompt of calls that name none."""
        return self._prompts.default_name

    @default_prompt_name.setter
    def default_prompt_name(self, value: str | None) -> None:
        self._set_prompts(Prompts(self._prompts.by_name, value))

    @property
    def tokenizer(self) -> Any:
        """A copy of the tokenizer, as one of transformers, which has to be installed."""
        library = require("transformers", extra="train", purpose="a tokenizer of transformers")
        return library.AutoTokenizer.from_pretrained(
            self._loaded.folder, model_max_length=self.max_seq_length
        )

    @property
    def model_card_data(self) -> SimpleNamespace:
        """An object for the figures of evaluators; none is kept, as a bundle's card is a file."""
        base = self._loaded.manifest.base_model
        return SimpleNamespace(
            base_model=base.get("name"), base_model_revision=base.get("revision"),
            license=base.get("license"), model_name=self._loaded.folder.name,
            set_evaluation_metrics=lambda *_: None,
        )  # fmt: skip

    @property
    def device(self) -> Device:
        """The device of the model: `"cpu"` or `"cuda:0"`, equal to the `torch.device` of it."""
        return Device(self._loaded.devices[0])

    def start_multi_process_pool(self, target_devices: list[str] | None = None) -> Pool:
        """Return a pool for `pool=`: this process, which uses all processors already.

        Raises:
            ConfigError: the devices are not those that the model was loaded on.
        """
        self._check_devices(target_devices)
        return {"input": None, "output": None, "processes": []}

    @staticmethod
    def stop_multi_process_pool(pool: Pool) -> None:
        """Do nothing: a pool holds no processes."""

    def eval(self) -> Self:
        """Return the model as it is, which never trains."""
        return self

    def to(self, device: object) -> Self:
        """Return the model, if `device` is where it is; AttributeError says what to do if not."""
        if str(device) in (self.device, self.device.type):
            return self
        raise AttributeError(f"the model stays on {self.device}: {_ELSEWHERE['cuda']}")

    def __getattr__(self, name: str) -> Any:
        hint = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"{type(self).__name__} has no {name!r} here{hint}", name=name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._loaded.folder)!r})"

    def _check_devices(self, devices: object) -> None:
        for device in devices if isinstance(devices, list) else [devices]:
            if device is not None and str(device) not in (self.device, self.device.type):
                raise ConfigError(
                    f"the model is on {self.device}, not on {device}: choose the device when "
                    f"loading, {type(self).__name__}(..., device={str(device)!r})"
                )

    @property
    def _prompts(self) -> Prompts:
        return self._loaded.pipeline.defaults.prompts

    @property
    def _pipelines(self) -> list[Pipeline]:
        return [self._loaded.pipeline]

    def _limit(self, tokens: int) -> None:
        for pipeline in self._pipelines:
            pipeline.tokenizer.limit(tokens)

    def _set_prompts(self, prompts: Prompts) -> None:
        _find(prompts.by_name, prompts.default_name, "Default prompt name")
        for pipeline in self._pipelines:
            pipeline.defaults = replace(pipeline.defaults, prompts=prompts)

    def _prompt_text(self, prompt: str | None, name: str | None) -> str:
        """Return the text to put before each text; a prompt goes before the name of one."""
        if prompt is not None and name is not None:
            logger.warning(
                "Provide either a `prompt`, a `prompt_name`, or neither, but not both. "
                "Ignoring the `prompt_name` in favor of `prompt`."
            )
        if prompt is None:
            name = self.default_prompt_name if name is None else name
            return _find(self.prompts, name, "Prompt name")
        return prompt


def _load_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `LoadOptions` that the arguments of the constructor choose."""
    model_kwargs = dict(given["model_kwargs"] or {})
    asked = {name: model_kwargs.pop(name, None) for name in _WITHOUT_EFFECT}
    if "float16" in (kind := str(asked["dtype"] or asked["torch_dtype"])):
        logger.warning("%s has no effect: model_kwargs={'variant': ...} does", kind)
    options = {**device_options(given["device"]), **model_kwargs}
    refuse_unknown("model_kwargs", options, LoadKeywords.__annotations__)
    if given["backend"] == "openvino":
        options.setdefault("providers", "openvino")
    return options


def _find(prompts: Mapping[str, str], name: str | None, noun: str) -> str:
    # The words are those of the original: programs look for them.
    if name is not None and name not in prompts:
        raise ConfigError(
            f"{noun} {name!r} not found in the configured prompts dictionary with keys "
            f"{list(prompts)!r}."
        )
    return "" if name is None else prompts[name]
