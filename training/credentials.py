"""Whether a text looks like a password or a token, which must not get into a configuration."""

import re
from collections.abc import Iterator
from typing import Any

_NAME = re.compile(
    r"(TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRETS?|CREDENTIALS?)(_|$)"
    r"|(^|_)(PASS|(API|ACCESS|PRIVATE)?_?KEY)(_|$)"
    r"|_PWD$",
    re.IGNORECASE,
)

_VALUE = re.compile(
    r"://[^/\s@]*:[^/\s@]+@"  # user and password of an address
    r"|\b(hf|gh[opsu]|glpat|github_pat)[_-][A-Za-z0-9_-]{20,}"  # Hugging Face, GitHub, GitLab
    r"|\b(AKIA|ASIA)[A-Z0-9]{16}\b"  # AWS
    r"|\bsk-[A-Za-z0-9_-]{20,}"  # OpenAI and others
    r"|\bdapi[0-9a-f]{32}"  # Databricks
    r"|\beyJ[\w-]{10,}\.[\w-]+\.[\w-]*"  # a JSON Web Token, as Kubernetes and Kubeflow have them
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
)

_QUERY = re.compile(r"[?&;#][\w.-]*(user|passw|pwd|token|secret|api_?-?key|credential|signature)[\w.-]*=", re.I)


_LONGEST = 200


def names_credential(name: str) -> bool:
    """Whether a variable of this name holds what must not be seen."""
    return _NAME.search(name) is not None


def is_credential(text: str) -> bool:
    """Whether a text has a token of a known form, or an address with a password, in it."""
    return _VALUE.search(text) is not None


def has_login(uri: str) -> bool:
    """Whether an address has a user, a password or a token in it."""
    has_user = "@" in uri and not uri.startswith("sqlite:")
    return has_user or _QUERY.search(uri) is not None or is_credential(uri)


def shown(given: Any) -> str:
    """What was given, for a message; not if there is a credential in it."""
    text = repr(given)
    if is_credential(text):
        return "a text that looks like a credential"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def credentials_in(content: Any) -> Iterator[str]:
    """Where in nested content there are credentials, as dotted keys."""
    yield from _search(content, "", ())


def _search(content: Any, where: str, above: tuple[int, ...]) -> Iterator[str]:
    if isinstance(content, str):
        if is_credential(content):
            yield where
    # YAML can make content that holds itself.
    elif isinstance(content, dict | list | tuple) and id(content) not in above:
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in pairs:
            named = not is_credential(str(key))
            path = f"{where}.{key}".lstrip(".") if named else where
            if not named:
                yield where
            yield from _search(value, path, (*above, id(content)))
