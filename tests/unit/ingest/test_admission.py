from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from adlro.errors import InvalidInput
from adlro.hardware.specs import GPU_SPECS
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.dependencies import DependencyCondition, JobDependency
from adlro.records.jobs import ArrayTask, ExpectedRuntime, JobSpec, JobType
from adlro.records.specifications import completed
from adlro.services.ingest.admission import Admission, refusals
from adlro.services.ingest.clusters import ClusterView, check_cluster
from tests.unit.ingest.clusters_for_tests import SMALL, VIEW

JOB = JobSpec("n", "u", JobType.SIMULATION)


def with_(**fields: Any) -> JobSpec:
    return dataclasses.replace(JOB, **fields)


def test_a_job_that_fits_is_accepted():
    assert refusals(with_(cpu_cores=20, memory_mib=262_144, gpu_memory_mib=16_160), VIEW) == []
    assert refusals(with_(cpu_cores=40, memory_mib=65_536, gpu_memory_mib=4_000), VIEW) == []


@pytest.mark.parametrize(
    ("fields", "field", "largest"),
    [
        ({"cpu_cores": 41}, "job.cpu_cores", "40"),
        ({"memory_mib": 262_145}, "job.memory_mib", "262144"),
        ({"gpu_memory_mib": 16_161}, "job.gpu_memory_mib", "16160"),
    ],
)
def test_a_job_larger_than_anything_is_refused_with_the_largest(fields, field, largest):
    (violation,) = refusals(with_(**fields), VIEW)
    assert violation.field == field
    assert violation.description.endswith(f"of cluster 'default' has {largest}")


def test_a_job_that_fits_only_in_parts_names_what_to_lower_and_how_far():
    violations = refusals(with_(cpu_cores=30, gpu_memory_mib=8_000), VIEW)
    assert [each.field for each in violations] == ["job.cpu_cores", "job.gpu_memory_mib"]
    assert "at most 20 CPU cores" in violations[0].description
    assert "at most 4000 MiB of GPU memory" in violations[1].description


def test_a_job_for_which_no_single_field_would_do_names_all():
    nodes = tuple(
        Node(f"n{i}", cores, memory, (Gpu(f"n{i}/0", "t4", gpu),))
        for i, (cores, memory, gpu) in enumerate([(10, 1000, 1000), (1, 9000, 1000), (1, 1000, 9000)])
    )
    violations = refusals(with_(cpu_cores=9, memory_mib=8000, gpu_memory_mib=8000), ClusterView(Cluster("c", nodes)))
    assert len(violations) == 3


def test_an_unknown_gpu_model_is_refused_with_the_clusters_and_the_nearest():
    (violation,) = refusals(with_(expected_runtime=ExpectedRuntime("v1000", 1.0)), VIEW)
    assert violation.field == "job.expected_runtime.gpu_model"
    for shown in ("abacus", "v100", f"{len(GPU_SPECS)} known models", "docs/real_gpus.md"):
        assert shown in violation.description
    assert len(violation.description) < 512  # what a gRPC status keeps


def test_a_model_of_the_cluster_or_of_the_table_is_known():
    assert refusals(with_(expected_runtime=ExpectedRuntime("abacus", 1.0)), VIEW) == []
    assert refusals(with_(expected_runtime=ExpectedRuntime("t4", 1.0)), None) == []
    assert len(refusals(with_(expected_runtime=ExpectedRuntime("abacus", 1.0)), None)) == 1


def test_without_a_known_cluster_any_size_is_accepted():
    assert refusals(with_(cpu_cores=4096, memory_mib=2**24, gpu_memory_mib=2**20), None) == []


def test_models_that_a_job_accepts_are_known_ones_and_one_is_there():
    assert refusals(with_(gpu_models=("t4", "abacus")), VIEW) == [], "one of them is there"
    assert refusals(with_(gpu_models=("t4",)), None) == []
    (unknown,) = refusals(with_(gpu_models=("abacus", "V100")), VIEW)
    assert unknown.field == "job.gpu_models[1]"
    assert "'V100' is not a known GPU model; use one of abacus, v100" in unknown.description
    (absent,) = refusals(with_(gpu_models=("t4", "k80")), VIEW)
    assert (absent.field, absent.description) == (
        "job.gpu_models",
        "job.gpu_models: cluster 'default' has none of these models; it has abacus, v100_sxm2",
    )


def test_what_a_job_asks_for_is_looked_for_on_the_models_that_it_accepts():
    assert refusals(with_(cpu_cores=30, gpu_models=("abacus",)), VIEW) == []
    (violation,) = refusals(with_(cpu_cores=30, gpu_models=("v100_sxm2",)), VIEW)
    assert violation.field == "job.cpu_cores"
    assert "the largest node of cluster 'default' with v100_sxm2 has 20" in violation.description


GANGS = ClusterView(
    Cluster(
        "g",
        (
            *(
                Node(f"a-{i}", 20, 262_144, tuple(Gpu(f"a-{i}/{g}", "v100_sxm2", 16_160) for g in range(4)))
                for i in range(2)
            ),
            Node("b-0", 64, 262_144, tuple(Gpu(f"b-0/{g}", "t4", 15_000) for g in range(8))),
        ),
    )
)


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu_count": 8},
        {"gpu_count": 8, "max_node_count": 9},
        {"gpu_count": 8, "max_node_count": 1, "gpu_models": ("v100_sxm2", "t4")},
        {"gpu_count": 8, "max_node_count": 2, "gpu_models": ("v100_sxm2",), "cpu_cores": 5},
        {"gpu_count": 4, "cpu_cores": 10, "gpu_models": ("v100_sxm2",)},
    ],
)
def test_gpus_of_one_model_on_few_enough_nodes_are_accepted(fields):
    assert refusals(with_(**fields), GANGS) == []


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        (
            {"gpu_count": 9},
            "job.gpu_count",
            "asks for 9 GPUs of one model, each with {}; {} has at most 8 of t4, 8 of v100_sxm2",
        ),
        (
            {"gpu_count": 5, "cpu_cores": 10, "gpu_models": ("v100_sxm2",)},
            "job.gpu_count",
            "asks for 5 GPUs of one model, each with {}; {} has at most 4 of v100_sxm2",
        ),
        (
            {"gpu_count": 6, "max_node_count": 1, "gpu_memory_mib": 16_000},
            "job.max_node_count",
            "6 GPUs of one model, each with {} and 16000 MiB of GPU memory, take at least 2 nodes of {}; allow 2, or "
            "ask for fewer GPUs",
        ),
    ],
)
def test_gpus_that_no_set_of_nodes_can_hold_are_refused_with_what_it_holds(fields, field, text):
    each = f"{fields['cpu_cores']} CPU cores" if "cpu_cores" in fields else "1 CPU core"
    each += " and 4096 MiB of memory"
    (violation,) = refusals(with_(**fields), GANGS)
    assert violation.field == field
    assert violation.description == f"{field}: {text.format(each, 'cluster ' + repr('g'))}"


class _Clusters:
    """Two descriptions of one cluster: the one that is cached, and the one in Redis."""

    def __init__(self, cached: ClusterView | None, stored: ClusterView | None) -> None:
        self.cached, self.stored, self.reads = cached, stored, 0

    async def recent(self, name: str) -> ClusterView | None:
        return self.cached

    async def newest(self, name: str) -> ClusterView | None:
        self.reads += 1
        return self.stored


class _NoJobs:
    """A store without jobs."""

    async def ends(self, ids: Any) -> dict[str, Any]:
        return {}


async def test_a_job_that_waits_for_one_that_is_not_there_is_refused():
    after = (JobDependency("job-7"), JobDependency("array-1", DependencyCondition.ENDED))
    with pytest.raises(InvalidInput) as caught:
        await Admission(_Clusters(VIEW, VIEW), "default", _NoJobs()).admit(with_(after=after), "r")  # type: ignore[arg-type]
    assert [each.field for each in caught.value.violations] == ["job.after[0].job_id", "job.after[1].job_id"]
    assert "no job or array 'job-7'" in caught.value.message


async def test_a_place_in_an_array_is_given_by_ingest_alone():
    spec = with_(array=ArrayTask("array-1", 0, 2))
    with pytest.raises(InvalidInput) as caught:
        await Admission(_Clusters(VIEW, VIEW), "default", _NoJobs()).admit(spec, "r")  # type: ignore[arg-type]
    assert caught.value.field == "job.array"


async def test_the_indexes_of_an_array_rise():
    admission = Admission(_Clusters(VIEW, VIEW), "default", _NoJobs())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput) as caught:
        await admission.admit_array(with_(), (0, 3, 3), 0, "r")
    assert caught.value.field == "indexes[2]"


async def test_a_refusal_never_rests_on_an_old_description():
    grown = Cluster("default", (*SMALL.nodes, Node("big-0", 128, 2**20, (Gpu("big-0/0", "t4", 15_000),))))
    clusters = _Clusters(VIEW, ClusterView(grown))
    new = await Admission(clusters, "default", _NoJobs()).admit(with_(cpu_cores=64), "r")  # type: ignore[arg-type]
    assert new.normalized.cpu_cores == 0.5
    assert clusters.reads == 1
    with pytest.raises(InvalidInput) as caught:
        await Admission(_Clusters(VIEW, VIEW), "default", _NoJobs()).admit(with_(cpu_cores=64), "r")  # type: ignore[arg-type]
    assert caught.value.field == "job.cpu_cores"


def test_a_cluster_that_contradicts_itself_is_refused_with_every_violation():
    gpu = Gpu("a/0", "t4", 15_000)
    bad = Cluster(
        "default",
        (
            Node("a", 1, 1, (gpu, gpu)),
            Node("a", 1, 1, (dataclasses.replace(gpu, gpu_id="a/1"), Gpu("a/2", "abacus", 1))),
        ),
    )
    with pytest.raises(InvalidInput) as caught:
        check_cluster(bad)
    assert [each.field for each in caught.value.violations] == [
        "cluster.nodes[0].gpus[1].gpu_id",
        "cluster.nodes[1].node_id",
        "cluster.nodes[1].gpus[1].gpu_model",
    ]
    assert "v100_sxm2" in caught.value.violations[2].description
    check_cluster(SMALL)


NODES = ClusterView(
    Cluster(
        "c",
        (
            Node("a", 8, 65_536, (Gpu("a/0", "t4", 16_000), Gpu("a/1", "t4", 16_000))),
            Node("b", 40, 65_536, (Gpu("b/0", "v100_sxm2", 16_000),)),
            Node("front", 4, 4_096, ()),
        ),
    )
)


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"node_ids": ("a", "x")}, "job.node_ids[1]", "cluster 'c' has no node 'x'; it has a, b, front (adlro nodes)"),
        ({"excluded_node_ids": ("y",)}, "job.excluded_node_ids[0]", "cluster 'c' has no node 'y'"),
        ({"excluded_node_ids": ("a", "b")}, "job.excluded_node_ids", "no node with GPUs is left"),
        ({"node_ids": ("front",)}, "job.node_ids", "no node with GPUs is left"),
        ({"excluded_node_ids": ("b",), "cpu_cores": 9}, "job.cpu_cores", "of cluster 'c' has 8 (counting the nodes"),
        ({"node_ids": ("b",), "gpu_models": ("t4",)}, "job.gpu_models", "has none of these models; it has v100_sxm2"),
        ({"node_ids": ("b",), "gpu_count": 2}, "job.gpu_count", "has at most 1 of v100_sxm2"),
    ],
)
def test_nodes_that_are_not_there_or_cannot_hold_the_job_are_refused_with_the_way_out(fields, field, text):
    (violation,) = refusals(with_(**fields), NODES)
    assert violation.field == field
    assert text in violation.description


def test_of_many_unknown_nodes_only_some_are_told_one_by_one():
    unknown = tuple(f"x{number}" for number in range(2000))
    found = refusals(with_(excluded_node_ids=unknown), NODES)
    assert len(found) == 21
    assert found[0].description.startswith("job.excluded_node_ids[0]: cluster 'c' has no node 'x0'; it has ")
    assert found[20].description == (
        "job.excluded_node_ids[20]: cluster 'c' has no node 'x20', nor 1979 more that the job names"
    )
    assert len(refusals(with_(node_ids=unknown[:20]), NODES)) == 20


@pytest.mark.parametrize(
    "fields", [{"node_ids": ("a",), "gpu_count": 2}, {"excluded_node_ids": ("a", "front"), "exclusive": True}]
)
def test_nodes_that_hold_the_job_are_accepted(fields):
    assert refusals(with_(**fields), NODES) == []
    assert refusals(with_(**fields), None) == []
    chosen = NODES.chosen_by(with_(**fields))
    assert chosen is NODES.chosen_by(with_(**fields, cpu_cores=2))
    assert chosen is not NODES.chosen_by(with_(node_ids=("a", "b")))


def test_an_exclusive_job_that_shares_and_one_that_excludes_all_its_nodes_contradict_themselves():
    for fields, field in (
        ({"exclusive": True, "shareable": True}, "job.exclusive"),
        ({"node_ids": ("a",), "excluded_node_ids": ("a",)}, "job.excluded_node_ids"),
    ):
        with pytest.raises(InvalidInput) as refused:
            completed(with_(**fields))
        assert [each.field for each in refused.value.violations] == [field]
