"""Settings that Kubernetes would refuse in a manifest are refused with the configuration, in words."""

import re

import pytest

from training.errors import UserError
from training.resolve import resolve

MINIMAL = {
    "model": {"name": "org/model"},
    "data": {"train": "org/data"},
    "parallel": {"procs_per_node": 2},
}
LONG = "a" * 64
REGEX = re.compile(r"\\[wds]|\(\?|\[a-z|\^|pattern|tuple|dictionary")


def refusal(*overrides):
    with pytest.raises(UserError) as caught:
        resolve(MINIMAL, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("cluster.namespace=Team A", "'cluster.namespace' is 'Team A': a namespace has"),
        ("cluster.namespace=a.b", "a namespace has at most 63"),
        (f"cluster.namespace={LONG}", "a namespace has at most 63"),
        ("cluster.image=a b", "an image is written REPOSITORY:TAG"),
        ('cluster.image="x:1\\nfoo: bar"', "an image is written"),
        ("cluster.image=Registry/Image:1", "lower-case letters"),
        ("cluster.image_pull_secrets=regcred", "write it as a list"),
        ("cluster.image_pull_secrets=[Reg]", "'cluster.image_pull_secrets.0' is 'Reg': the name of a Kubernetes"),
        ("cluster.service_account=a_b", "the name of a Kubernetes object"),
        ('cluster.service_account="a\\n"', "the name of a Kubernetes object"),
        ("cluster.store_claim=a..b", "the name of a Kubernetes object"),
        ("cluster.priority_class=High", "the name of a Kubernetes object"),
        ("cluster.queue=Team A", "a queue has at most 63"),
        (f"cluster.queue={LONG}", "a queue has at most 63"),
        ("cluster.labels={team: a b}", "'cluster.labels.team' is 'a b': a label's value"),
        (f"cluster.labels={{team: {LONG}}}", "a label's value has at most 63"),
        ("cluster.labels={team a: x}", "a key is a name"),
        ("cluster.labels={a/b/c: x}", "a key is a name"),
        (f"cluster.labels={{{LONG}: x}}", "a key is a name"),
        ("cluster.labels={shardline.dev/run: x}", "the labels shardline.dev/run cannot be set"),
        ("cluster.annotations={a b: x}", "a key is a name"),
        ("cluster.annotations={training.kubeflow.org/job-name: x}", "cannot be set"),
        ("cluster.node_selector={gpu: a b}", "a label's value"),
        ("cluster.gpu_resource=gpu", "has a domain before its name, as in nvidia.com/gpu"),
        ("cluster.gpu_resource=NVIDIA.com/gpu", "a key is a name"),
        ("cluster.resources={foo: 1}", "has a domain before its name"),
        ("cluster.resources={rdma/ib: 0.5}", "of rdma/ib there are whole numbers only"),
        ("cluster.cpus_per_node=four", "an amount is a number"),
        ("cluster.cpus_per_node=-1", "an amount is a number"),
        ("cluster.cpus_per_node=1e22", "an amount is a number"),
        ("cluster.memory_per_node=64GB", "one of the units"),
        ("cluster.memory_per_node=64", "these are bytes, too few for anything: write it as in 64Gi"),
        ("cluster.shared_memory=64", "these are bytes"),
        ("cluster.env={A B: x}", "a variable has letters, digits and '_'"),
        ('cluster.env={A: "\\0"}', "cannot hold the character of code 0"),
        ("cluster.secrets={A: Secret/key}", "SECRET/KEY"),
        ("cluster.secrets={A: secret/clé}", "SECRET/KEY"),
        ("cluster.tolerations={key: gpu}", "write it as a list"),
        ("cluster.tolerations=[{keyy: gpu}]", "'keyy' is not known there: use key, operator"),
        ("cluster.tolerations=[{key: gpu, operator: exists}]", "operator is one of Exists, Equal"),
        ("cluster.tolerations=[{key: gpu, effect: NoRun}]", "effect is one of"),
        ("cluster.tolerations=[{operator: Equal}]", "operator has to be Exists"),
        ("cluster.tolerations=[{key: a, operator: Exists, value: b}]", "there is no value"),
        ("cluster.tolerations=[{key: a, tolerationSeconds: 5}]", "only with effect NoExecute"),
        ("cluster.tolerations=[{key: a, value: yes}]", "value is a text"),
        ("cluster.tolerations=[{key: a b}]", "a key is a name"),
        ("cluster.affinity={node: x}", "'node' is not known there: use nodeAffinity"),
        ("cluster.affinity={nodeAffinity: {a: 2024-01-01}}", "quote dates"),
        ("cluster.affinity={nodeAffinity: {a: .nan}}", "there may be texts, numbers"),
        ("cluster.etcd_endpoint=http://etcd:2379", "write it as HOST:PORT"),
        ("cluster.etcd_endpoint=etcd:99999", "write it as HOST:PORT"),
        ("cluster.ttl_s=99999999999", "less than or equal to 2147483647"),
        ("cluster.grace_s=99999999999999999999", "less than or equal to 86400"),
        ("parallel.num_nodes=99999999999", "less than or equal to 10000"),
        ("cluster.metrics_port=23456", "at which the nodes of a PyTorchJob meet"),
        ("parallel.num_nodes=yes", "'parallel.num_nodes' is True: give a number"),
        ("cluster.gpus_per_node=no", "'cluster.gpus_per_node' is False: give a number"),
        ("resilience.run_timeout_s=on", "give a number"),
        ("training.epochs=yes", "give a number"),
        ("registry.model_name=a/b", "a name has no '/'"),
        ("registry.alias=1st", "an alias has letters"),
        ("cluster.ttl_s=yes", "give a number"),
        ("cluster.env.A=b", "is set as a whole: 'cluster.env={name: value}'"),
    ],
)
def test_a_mistake_is_told_in_words(override, said):
    text = refusal(override)
    assert said in text
    assert not REGEX.search(text), "words for people, not a pattern"


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("namespace", "team-a", "team-a"),
        ("image", "registry.example.com:5000/a/b_c/d.e:v1.2-x", None),
        ("image", "ghcr.io/a/b@sha256:" + "0" * 64, None),
        ("image", "image", None),
        ("image_pull_secrets", "[regcred, a.b]", ("regcred", "a.b")),
        ("queue", "team-a", None),
        ("labels", "{team: nlp, example.com/a_b.C: X_1, empty: ''}", {"team": "nlp", "example.com/a_b.C": "X_1"}),
        ("annotations", "{example.com/note: 'any text, 漢字'}", {"example.com/note": "any text, 漢字"}),
        ("node_selector", "{node.kubernetes.io/instance-type: p5.48xlarge, gpu: 'true'}", None),
        ("gpu_resource", "amd.com/gpu", None),
        ("resources", "{hugepages-2Mi: 5120Mi, rdma/ib: 1}", {"hugepages-2Mi": "5120Mi", "rdma/ib": "1"}),
        ("cpus_per_node", "1.5", "1.5"),
        ("cpus_per_node", "500m", "500m"),
        ("memory_per_node", "512Gi", "512Gi"),
        ("memory_per_node", "1073741824", "1073741824"),
        ("memory_per_node", "2097152Ki", "2097152Ki"),
        ("env", "{NCCL_DEBUG: INFO}", {"NCCL_DEBUG": "INFO"}),
        ("secrets", "{HF_TOKEN: hf/token, A: a.b/c_D.e}", {"HF_TOKEN": "hf/token", "A": "a.b/c_D.e"}),
        ("tolerations", "[{key: gpu, operator: Exists}, {operator: Exists}]", None),
        ("tolerations", "[{key: a, value: b, effect: NoExecute, tolerationSeconds: 5}]", None),
        ("affinity", "{podAntiAffinity: {}}", {"podAntiAffinity": {}}),
        ("ttl_s", "2147483647", 2147483647),
        ("autoscaling", "yes", True),
    ],
)
def test_what_kubernetes_takes_is_taken(field, given, kept):
    value = getattr(resolve(MINIMAL, [f"cluster.{field}={given}"]).cluster, field)
    assert value not in (None, {}, ())
    if isinstance(kept, dict):
        assert kept.items() <= value.items()
    elif kept is not None:
        assert value == kept


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("env={A: x}", "secrets={A: s/k}", "A stands in cluster.env and in cluster.secrets"),
        ("resources={nvidia.com/gpu: 4}", "gpus_per_node=8", "cluster.gpus_per_node is set: leave one out"),
        ("resources={cpu: 4}", "cpus_per_node=8", "cpu stands in cluster.resources"),
    ],
)
def test_what_is_given_twice_is_refused(first, second, said):
    assert said in refusal(f"cluster.{first}", f"cluster.{second}")
    assert resolve(MINIMAL, [f"cluster.{first}"])


def test_a_port_at_which_nobody_meets_is_free():
    etcd = ["cluster.rendezvous=etcd", "cluster.etcd_endpoint=etcd:2379", "cluster.metrics_port=23456"]
    assert resolve(MINIMAL, etcd).cluster.metrics_port == 23456


def test_what_is_long_is_cut():
    assert len(refusal(f"cluster.namespace={'a' * 10_000}")) < 500
