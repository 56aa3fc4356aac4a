"""Who may do what: tokens, and rules in the manner of role-based access control."""

from tests.doubles.cluster import errors


class Access:
    """The one user who has a token may do everything, but for what was denied.

    Rules are pairs of a verb and a plural, the latter with its subresource, as in `("get", "pods/log")`.
    """

    def __init__(self, token, namespace):
        self._token = token
        self._user = f"system:serviceaccount:{namespace}:launcher"
        self._namespace = namespace
        self._denied = set()
        self._allowed = None

    def deny(self, verb, resource):
        self._denied.add((verb, resource))

    def allow_only(self, *rules):
        self._allowed = set(rules)

    def allow_all(self):
        self._denied.clear()
        self._allowed = None

    def user(self, headers):
        """The user of a request; raises for a token that is not known."""
        given = headers.get("Authorization")
        if given is None:
            return "system:anonymous"
        if given != f"Bearer {self._token}":
            raise errors.unauthorized()
        return self._user

    def check(self, user, verb, group, resource, name, namespace):
        if user != self._user or not self.may(verb, resource):
            raise errors.forbidden(user, verb, group, resource, name, namespace)

    def may(self, verb, resource):
        if self._allowed is not None and (verb, resource) not in self._allowed:
            return False
        return not self._denied & {(verb, resource), ("*", resource), (verb, "*"), ("*", "*")}

    def review(self, attributes):
        """The status of a SelfSubjectAccessReview."""
        resource = attributes.get("resource", "")
        if subresource := attributes.get("subresource"):
            resource = f"{resource}/{subresource}"
        if not self.may(attributes.get("verb", ""), resource):
            return {"allowed": False}
        role = f'RoleBinding "launcher/{self._namespace}" of Role "launcher"'
        account = f'ServiceAccount "launcher/{self._namespace}"'
        return {"allowed": True, "reason": f"RBAC: allowed by {role} to {account}"}
