"""Runs on partitions of each kind: from the command line's words to a trained model."""

import pytest

PARTITIONS = {
    "dirichlet": ["data.partition.kind=dirichlet", "data.partition.alpha=0.3"],
    "similarity": ["data.partition.kind=similarity", "data.partition.similarity=0.1"],
    "flwr_datasets": [
        *("data.partition.kind=flwr_datasets", "data.partition.partitioner=DirichletPartitioner"),
        "data.partition.arguments={alpha: 0.3, min_partition_size: 20}",
    ],
}
WORDS = ["num_rounds=3", "num_clients=5", "strategy.local_steps=1"]


@pytest.mark.parametrize("kind", PARTITIONS)
def test_a_run_on_skewed_clients_learns_and_is_reproducible(run, kind):
    if kind == "flwr_datasets":
        pytest.importorskip("flwr_datasets", reason="needs the extra hf")
    words = ["strategy=fedavg", "num_rounds=3", "num_clients=5", *PARTITIONS[kind]]
    first, again = run(*words), run(*words)
    assert first.summary["test_accuracy"] > 0.5
    assert first.sha256 == again.sha256
    assert [row["num_replies"] for row in first.rows[1:]] == [5, 5, 5]
    private = run(*WORDS, *PARTITIONS[kind])
    assert private.summary["epsilon"] <= 8
