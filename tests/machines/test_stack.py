"""What differs between two software stacks, and what is stored of one."""

from dataclasses import replace

from cubemesh.machines.software import library_variables
from cubemesh.machines.stack import software_differences, stack_differences
from cubemesh.schema import (
    Cpu,
    Environment,
    Gpu,
    Machine,
    Memory,
    RunRecord,
    RunSpec,
    Software,
    TrainSteps,
)

ONE = Software(
    python="3.11.2",
    system="Debian GNU/Linux 12, Linux 6.1.0",
    packages={"torch": "2.11.0", "numpy": "2.4.6"},
    cuda="12.8",
    driver="570.2",
    nccl="2.27.5",
)
HERE = Machine(
    hostname="node7",
    cpu=Cpu(model="EPYC", usable_cores=8, instruction_sets=("avx2", "fma")),
    memory=Memory(),
    gpus=(Gpu(index=0, name="NVIDIA H200", uuid="GPU-0"),),
    software=ONE,
)


def triples(found):
    return [(d.what, d.first, d.second) for d in found]


def test_equal_stacks_do_not_differ():
    assert stack_differences(HERE, replace(HERE, hostname="other")) == ()


def test_each_kind_of_item_is_found():
    other = replace(
        HERE,
        container="docker",
        cpu=replace(HERE.cpu, instruction_sets=("avx2", "avx512f", "fma")),
        software=replace(
            ONE,
            python="3.12.1",
            system="Ubuntu 24.04, Linux 6.8.0",
            packages={"torch": "2.13.0", "numpy": "2.4.6", "triton": "3.5"},
            cuda="13.0",
            driver="580.1",
            nccl=None,
            cpp_compiler="g++ 14",
            variables={"OMP_NUM_THREADS": "4"},
        ),
    )
    assert triples(stack_differences(HERE, other)) == [
        ("container", "none", "docker"),
        ("operating system", "Debian GNU/Linux 12", "Ubuntu 24.04"),
        ("kernel", "Linux 6.1.0", "Linux 6.8.0"),
        ("Python", "3.11.2", "3.12.1"),
        ("driver", "570.2", "580.1"),
        ("CUDA", "12.8", "13.0"),
        ("NCCL", "2.27.5", "none"),
        ("C++ compiler", "none", "g++ 14"),
        ("torch", "2.11.0", "2.13.0"),
        ("triton", "none", "3.5"),
        ("OMP_NUM_THREADS", "none", "4"),
        ("avx512f", "none", "yes"),
    ]


def test_other_hardware_is_named_first():
    other = replace(HERE, gpus=(), cpu=replace(HERE.cpu, usable_cores=4))
    assert triples(stack_differences(HERE, other)) == [
        ("usable cores", "8", "4"),
        ("GPUs", "1 × NVIDIA H200", "none"),
    ]


def test_variables_of_libraries_are_stored_and_secrets_are_not():
    found = library_variables(
        {
            "OMP_NUM_THREADS": "4",
            "NCCL_ALGO": "Ring",
            "HOME": "/root",
            "TORCH_API_TOKEN": "x",
            "TF_SECRET": "x",
            "TF_CLI_CONFIG_FILE": "terraform",
            "TF_VAR_database": "terraform",
            "TF_DETERMINISTIC_OPS": "1",
            "XLA_FLAGS": "a" * 1000 + "\x1b",
        }
    )
    assert list(found) == ["NCCL_ALGO", "OMP_NUM_THREADS", "TF_DETERMINISTIC_OPS", "XLA_FLAGS"]
    assert len(found["XLA_FLAGS"]) < 400


def test_a_record_of_another_python_has_that_stack_with_the_driver_of_the_runner(record_of):
    record: RunRecord = replace(
        record_of(RunSpec(work=TrainSteps(network="alexnet", batch_per_device=1))), software=ONE
    )
    assert record.stack == ONE
    own = Software(python="3.12.1", system=ONE.system, packages={"jax": "0.11.2"})
    other = replace(record, environment=Environment(python="/opt/jax/python", software=own))
    assert other.stack == replace(own, driver="570.2", cuda="12.8")
    assert [d.what for d in software_differences(ONE, other.stack)] == [
        *("Python", "NCCL", "jax", "numpy", "torch")
    ]
