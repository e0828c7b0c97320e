"""Check Kubernetes' objects by the schemas of their kinds, without fields that these do not have.

Called as `python kubernetes_schemas.py` with what tests/run.sh installs into build/helm. It reads a
list of objects as JSON, and writes what is wrong with each, or null. Kubernetes' own schemas are of
JSON; those of KEDA and of the Prometheus operator are classes that cloudcoil has made from their
definitions, and those of KServe the classes of its client.
"""

import importlib
import json
import re
import sys
import types
from pathlib import Path

import cloudcoil.pydantic
import kubernetes_validate

KUBERNETES = "1.31"
# Before its classes are made: they take no field that they do not know, and no Python name of one.
cloudcoil.pydantic.BaseModel.model_config |= {"extra": "forbid", "populate_by_name": False}
CLOUDCOIL = {"keda.sh/v1alpha1": "keda.v1alpha1",
             "monitoring.coreos.com/v1": "prometheus_operator.v1"}  # fmt: skip
KSERVE = {"serving.kserve.io/v1alpha1": "V1alpha1", "serving.kserve.io/v1beta1": "V1beta1"}
PLAIN = {"str": str, "int": int, "bool": bool, "float": float, "object": object}


def kserve_models():
    """Import the classes alone, because the package is a server that imports much more."""
    folder = next(Path(path, "kserve") for path in sys.path if Path(path, "kserve").is_dir())
    package = sys.modules.setdefault("kserve", types.ModuleType("kserve"))
    package.__path__ = [str(folder)]
    return importlib.import_module("kserve.models")


def check_kserve(value, kind, models, at=""):
    """Raise ValueError unless a value is of a kind; yield the fields that are Kubernetes' own."""
    if kind.startswith("list["):
        for i, each in enumerate(of_type(value, list, at)):
            yield from check_kserve(each, kind[5:-1], models, f"{at}[{i}]")
    elif kind.startswith("dict(str, "):
        for name, each in of_type(value, dict, at).items():
            yield from check_kserve(each, kind[10:-1], models, f"{at}.{name}")
    elif model := getattr(models, kind, None):
        names = {name: attribute for attribute, name in model.attribute_map.items()}
        if unknown := of_type(value, dict, at).keys() - names.keys():
            raise ValueError(f"{at}: {kind} has no {sorted(unknown)}")
        model(**{names[name]: each for name, each in value.items()})  # is what it needs there?
        for name, each in value.items():
            of = model.openapi_types[names[name]]
            if re.fullmatch(r"(list\[)?V1[A-Z]\w+\]?", of):
                yield name, each
            else:
                yield from check_kserve(each, of, models, f"{at}.{name}")
    else:
        of_type(value, PLAIN[kind], at)


def of_type(value, expected, at):
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is int):
        raise ValueError(f"{at}: {value!r} is not of the type {expected.__name__}")
    return value


def check(each):
    """Raise what the schema of an object's kind says against it."""
    api = each["apiVersion"]
    if api in CLOUDCOIL:
        module = importlib.import_module(f"cloudcoil.models.{CLOUDCOIL[api]}")
        getattr(module, each["kind"]).model_validate_json(json.dumps(each), strict=True)
    elif api in KSERVE:
        # What is of Kubernetes in them is the metadata, and fields of a pod.
        kind = KSERVE[api] + each["kind"]
        pod = {"containers": [{"name": "server", "image": "server"}]}
        pod |= check_kserve(each, kind, kserve_models())
        metadata = pod.pop("metadata")
        check({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})
    else:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


def what_is_wrong(each):
    try:
        check(each)
    except (ValueError, kubernetes_validate.ValidationError) as error:
        return str(error)
    return None


if __name__ == "__main__":
    json.dump([what_is_wrong(each) for each in json.load(sys.stdin)], sys.stdout)
