"""The kinds that the cluster serves."""

from dataclasses import dataclass, field

METADATA_FIELDS = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True)
class Resource:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    custom: bool = False
    """Defined by a CustomResourceDefinition, which changes answers in many small ways."""
    subresources: tuple[str, ...] = ()
    fields: tuple[str, ...] = field(default=())
    """What a field selector may name, beside the name and the namespace."""

    @property
    def api_version(self):
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self):
        return f"{self.plural}.{self.group}" if self.group else self.plural


PYTORCHJOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", custom=True, subresources=("status",))
TRAINJOBS = Resource(
    "trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob", custom=True, subresources=("status",)
)
CLUSTER_RUNTIMES = Resource(
    "trainer.kubeflow.org",
    "v1alpha1",
    "clustertrainingruntimes",
    "ClusterTrainingRuntime",
    namespaced=False,
    custom=True,
)
QUEUES = Resource("kueue.x-k8s.io", "v1beta1", "localqueues", "LocalQueue", custom=True)
PODS = Resource(
    "",
    "v1",
    "pods",
    "Pod",
    subresources=("status", "log"),
    fields=(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
    ),
)
SERVICES = Resource("", "v1", "services", "Service", fields=("spec.clusterIP", "spec.type"))
EVENTS = Resource(
    "",
    "v1",
    "events",
    "Event",
    fields=(
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "type",
    ),
)
SECRETS = Resource("", "v1", "secrets", "Secret", fields=("type",))
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False, fields=("spec.unschedulable",))
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False, fields=("status.phase",))
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)

ALWAYS = (PODS, SERVICES, EVENTS, SECRETS, CONFIG_MAPS, CLAIMS, NODES, NAMESPACES, DEFINITIONS)
INSTALLABLE = (PYTORCHJOBS, TRAINJOBS, CLUSTER_RUNTIMES, QUEUES)
