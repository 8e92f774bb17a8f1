"""cubemesh: how fast a machine trains neural networks, what it loses, how far it scales.

    import cubemesh
    result = cubemesh.run("minibatch", networks=["resnet-18"])

Each function of the interface is in `cubemesh.api`, in the file of its verb, and is imported when
it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cubemesh.api.audit import audit_store
    from cubemesh.api.collectives import collectives
    from cubemesh.api.compare import compare
    from cubemesh.api.doctor import doctor
    from cubemesh.api.experiments import experiment_settings, list_experiments
    from cubemesh.api.export import export
    from cubemesh.api.import_ import import_measurements
    from cubemesh.api.launch import launch
    from cubemesh.api.layouts import predict_layout
    from cubemesh.api.networks import export_network, list_networks, network_layers
    from cubemesh.api.predict import predict
    from cubemesh.api.probe import probe, topology
    from cubemesh.api.published import published_figures
    from cubemesh.api.report import report
    from cubemesh.api.results import record, results, telemetry
    from cubemesh.api.run import run
    from cubemesh.api.train import train
    from cubemesh.api.tune import tune

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "audit_store",
    "collectives",
    "compare",
    "doctor",
    "experiment_settings",
    "export",
    "export_network",
    "import_measurements",
    "launch",
    "list_experiments",
    "list_networks",
    "network_layers",
    "predict",
    "predict_layout",
    "probe",
    "published_figures",
    "record",
    "report",
    "results",
    "run",
    "telemetry",
    "topology",
    "train",
    "tune",
]
_FILES = {
    "audit_store": "audit",
    "experiment_settings": "experiments",
    "export_network": "networks",
    "import_measurements": "import_",
    "list_experiments": "experiments",
    "list_networks": "networks",
    "network_layers": "networks",
    "predict_layout": "layouts",
    "published_figures": "published",
    "record": "results",
    "telemetry": "results",
    "topology": "probe",
}
"""Function → its file, where that has another name."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'cubemesh' has no attribute {name!r}")
    value = getattr(import_module(f"cubemesh.api.{_FILES.get(name, name)}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
