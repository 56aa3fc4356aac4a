"""Keep credentials out of everything that is logged, tagged or shown."""

import html
import re
from typing import Any

from training.config import RunConfig

_USERINFO = re.compile(r"(?<=://)[^/\s]*@")


def strip_credentials(uri: str) -> str:
    """A tracking URI without user, password and query."""
    if uri.startswith("sqlite:"):
        return uri
    # Up to the last @: database URIs allow '/' and '@' in a password. The query may hold a password, too.
    return re.sub(r"://.*@", "://", uri).partition("?")[0]


def public_config(config: RunConfig) -> RunConfig:
    """A copy of the config whose URIs carry no credentials."""
    fields = _strip(config.model_dump(mode="json"))
    if config.registry.tracking_uri is not None:
        fields["registry"]["tracking_uri"] = strip_credentials(config.registry.tracking_uri)
    return RunConfig.model_validate(fields)


def public_text(text: str, config: RunConfig) -> str:
    """A text of another step, in which the tracking URI may stand, without its credentials."""
    uri = config.registry.tracking_uri
    if uri is None:
        return text
    for given in (uri, html.escape(uri)):
        text = text.replace(given, strip_credentials(uri))
    return text


def _strip(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strip(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strip(item) for item in value]
    return _USERINFO.sub("", value) if isinstance(value, str) else value
