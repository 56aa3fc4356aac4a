"""Credentials in URIs."""

import pytest

from components.register_model.redact import public_config, public_text, strip_credentials
from training.config import RunConfig


@pytest.mark.parametrize(
    ("given", "public"),
    [
        ("http://host:5000", "http://host:5000"),
        ("https://user:pass@host/base/path", "https://host/base/path"),
        ("https://token@host", "https://host"),
        ("postgresql+psycopg2://user:p/a@s@s@db:5432/mlflow", "postgresql+psycopg2://db:5432/mlflow"),
        ("postgresql://db/mlflow?user=u&password=pass", "postgresql://db/mlflow"),
        ("sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db"),
    ],
)
def test_strip_credentials(given: str, public: str) -> None:
    assert strip_credentials(given) == public


def test_config_and_text_without_credentials() -> None:
    uri = "https://user:pass&word@host"
    config = RunConfig.model_validate(
        {
            "model": {"name": "package://some_package/model.gguf"},
            "data": {"train": "https://me:token@hub.example/data.jsonl"},
            "registry": {"tracking_uri": uri},
        }
    )
    public = public_config(config)
    assert public.registry.tracking_uri == "https://host"
    assert public.data.train == "https://hub.example/data.jsonl"
    assert public.model == config.model
    assert (
        public_text(f"at {uri} or https://user:pass&amp;word@host", config)
        == "at https://host or https://host"
    )
