"""The pages that say which groups, versions and kinds there are."""

from tests.doubles.cluster.errors import page_not_found

VERBS = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]
VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"}


def discover(parts, resources):
    """The answer to a path outside of any kind; `resources` are those that are installed."""
    if parts == ["version"]:
        return VERSION
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ["api", "v1"]:
        return _resource_list("v1", [each for each in resources if not each.group])
    groups = {each.group: each.version for each in resources if each.group}
    if parts == ["apis"]:
        listed = [_group(name, version) for name, version in groups.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    if len(parts) == 2 and parts[0] == "apis" and parts[1] in groups:
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1], groups[parts[1]])}
    if len(parts) == 3 and parts[0] == "apis" and groups.get(parts[1]) == parts[2]:
        return _resource_list("/".join(parts[1:]), [each for each in resources if each.group == parts[1]])
    raise page_not_found()


def _group(name, version):
    served = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [served], "preferredVersion": served}


def _resource_list(group_version, resources):
    listed = []
    for each in resources:
        entry = {"name": each.plural, "singularName": "", "namespaced": each.namespaced, "kind": each.kind}
        listed.append({**entry, "verbs": VERBS})
        for subresource in each.subresources:
            verbs = ["get"] if subresource == "log" else ["get", "patch", "update"]
            listed.append({**entry, "name": f"{each.plural}/{subresource}", "verbs": verbs})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}
