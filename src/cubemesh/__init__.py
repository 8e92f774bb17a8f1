"""cubemesh: how fast a machine trains neural networks, what it loses, how far it scales.

    import cubemesh
    result = cubemesh.run("minibatch", networks=["resnet-18"])

Each function of the interface is in `cubemesh.api`, in the file of its verb or topic, and is
imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cubemesh.api.audit import audit_store
    from cubemesh.api.catalogue import (
        experiment_settings,
        list_experiments,
        list_networks,
        network_layers,
        published_figures,
        published_generations,
    )
    from cubemesh.api.collectives import collectives
    from cubemesh.api.compare import compare
    from cubemesh.api.doctor import doctor
    from cubemesh.api.export import bundle, export
    from cubemesh.api.image_sets import (
        check_image_set,
        list_image_set,
        prepare_images,
        sample_image_set,
    )
    from cubemesh.api.import_ import (
        import_bundle,
        import_measurements,
        import_training_log,
        verify_bundle,
    )
    from cubemesh.api.inference import (
        build_plan,
        classify_images,
        export_network,
        infer_plan,
        translate_texts,
    )
    from cubemesh.api.jobs import (
        agent,
        clone_job,
        delete_schedule,
        edit_job,
        job,
        job_curves,
        list_agents,
        list_jobs,
        list_schedules,
        pause_job,
        pause_schedule,
        prioritize_job,
        resume_job,
        resume_schedule,
        schedule,
        stop_job,
        submit,
        watch,
    )
    from cubemesh.api.launch import launch
    from cubemesh.api.layouts import predict_layout
    from cubemesh.api.own_step import measure, measure_interleaved
    from cubemesh.api.predict import predict
    from cubemesh.api.probe import probe, topology
    from cubemesh.api.report import report
    from cubemesh.api.results import record, results, telemetry
    from cubemesh.api.run import accept, run, train
    from cubemesh.api.tune import tune
    from cubemesh.inference.collector import Collector
    from cubemesh.inference.runtime import Plan

__version__ = "0.1.0"
__all__ = [
    "Collector",
    "Plan",
    "__version__",
    "accept",
    "agent",
    "audit_store",
    "build_plan",
    "bundle",
    "check_image_set",
    "classify_images",
    "clone_job",
    "collectives",
    "compare",
    "delete_schedule",
    "doctor",
    "edit_job",
    "experiment_settings",
    "export",
    "export_network",
    "import_bundle",
    "import_measurements",
    "import_training_log",
    "infer_plan",
    "job",
    "job_curves",
    "launch",
    "list_agents",
    "list_experiments",
    "list_image_set",
    "list_jobs",
    "list_networks",
    "list_schedules",
    "measure",
    "measure_interleaved",
    "network_layers",
    "pause_job",
    "pause_schedule",
    "predict",
    "predict_layout",
    "prepare_images",
    "prioritize_job",
    "probe",
    "published_figures",
    "published_generations",
    "record",
    "report",
    "results",
    "resume_job",
    "resume_schedule",
    "run",
    "sample_image_set",
    "schedule",
    "stop_job",
    "submit",
    "telemetry",
    "topology",
    "train",
    "translate_texts",
    "tune",
    "verify_bundle",
    "watch",
]
_FILES = {
    "Collector": "inference.collector",
    "Plan": "inference.runtime",
    "accept": "run",
    "agent": "jobs",
    "audit_store": "audit",
    "build_plan": "inference",
    "bundle": "export",
    "check_image_set": "image_sets",
    "classify_images": "inference",
    "clone_job": "jobs",
    "delete_schedule": "jobs",
    "edit_job": "jobs",
    "experiment_settings": "catalogue",
    "export_network": "inference",
    "import_bundle": "import_",
    "import_measurements": "import_",
    "import_training_log": "import_",
    "infer_plan": "inference",
    "job": "jobs",
    "job_curves": "jobs",
    "list_agents": "jobs",
    "list_experiments": "catalogue",
    "list_image_set": "image_sets",
    "list_jobs": "jobs",
    "list_networks": "catalogue",
    "list_schedules": "jobs",
    "measure_interleaved": "own_step",
    "network_layers": "catalogue",
    "pause_job": "jobs",
    "pause_schedule": "jobs",
    "predict_layout": "layouts",
    "prepare_images": "image_sets",
    "prioritize_job": "jobs",
    "published_figures": "catalogue",
    "published_generations": "catalogue",
    "record": "results",
    "resume_job": "jobs",
    "resume_schedule": "jobs",
    "sample_image_set": "image_sets",
    "schedule": "jobs",
    "stop_job": "jobs",
    "submit": "jobs",
    "telemetry": "results",
    "topology": "probe",
    "train": "run",
    "translate_texts": "inference",
    "verify_bundle": "import_",
    "watch": "jobs",
}
"""Name → its file, where that has another name or is not in `cubemesh.api`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'cubemesh' has no attribute {name!r}")
    if name == "measure":  # a package, which can be called (cubemesh/measure/__init__.py)
        return import_module("cubemesh.measure")
    file = _FILES.get(name, name)
    module = f"cubemesh.{file}" if "." in file else f"cubemesh.api.{file}"
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
