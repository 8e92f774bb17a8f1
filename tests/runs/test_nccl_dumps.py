"""Files that NCCL writes into a run's folder: which variables name them, and how they are read."""

import os

import pytest

from cubemesh.runs.nccl_dumps import read_dumps
from cubemesh.schema import Collective, Placement, RunSpec
from cubemesh.worker.launch.ranks import RankInfo, dump_nccl_graphs
from cubemesh.worker.run.job_file import NCCL_DUMPS, Job

TOPOLOGY, GRAPHS = NCCL_DUMPS.values()
RINGS = (
    '<graphs version="1"><graph id="0" pattern="4" nchannels="1" speedintra="20" '
    'typeintra="NVL" typeinter="PIX"><channel><gpu dev="0"/><gpu dev="1"/></channel></graph>'
    "</graphs>"
)


def test_nothing_is_read_where_nccl_wrote_nothing(tmp_path):
    assert read_dumps(tmp_path) is None


def test_a_file_is_read_and_a_missing_one_is_noted(tmp_path):
    (tmp_path / GRAPHS).write_text(RINGS)
    found = read_dumps(tmp_path)
    assert found.rings.orders[0].order == ("gpu0", "gpu1")
    assert found.notes == ("NCCL wrote no topology.",)


@pytest.mark.parametrize("kind", ["link", "pipe", "bomb", "large"])
def test_what_is_no_plain_file_of_nccl_is_not_read(tmp_path, kind):
    secret, path = tmp_path / "secret", tmp_path / GRAPHS
    secret.write_text(RINGS)
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "bomb":
        path.write_text('<!DOCTYPE g [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><graphs>&b;</graphs>')
    else:
        path.write_text(f"<graphs>{' ' * (5 << 20)}</graphs>")
    found = read_dumps(tmp_path)
    assert found is None or (not found.graphs and found.notes)


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_of_several_has_nccl_write_into_the_folder(tmp_path, monkeypatch, rank):
    """NCCL waits forever where some ranks have the variables and others have not."""
    spec = RunSpec(work=Collective(), placement=Placement(devices=2))
    job = Job(spec=spec, folder=str(tmp_path))
    topology, graphs = NCCL_DUMPS
    for variable in NCCL_DUMPS:
        monkeypatch.delenv(variable, raising=False)
    dump_nccl_graphs(job, RankInfo())
    assert not {*NCCL_DUMPS} & {*os.environ}
    monkeypatch.setenv(topology, "/own.xml")
    monkeypatch.setenv(graphs, "")
    monkeypatch.delenv(graphs)
    dump_nccl_graphs(job, RankInfo(rank=rank, ranks=2))
    assert os.environ[topology] == "/own.xml", "the user's own is unchanged"
    assert os.environ[graphs] == str(tmp_path / GRAPHS)
