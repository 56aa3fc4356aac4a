"""Two processes that move an alias at once."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from components.register_model.decision import Decision, carry_out
from components.tracking.history import held_by, move_alias, previous_holder
from components.tracking.registry import alias_holder
from components.tracking.turn import turn
from training.errors import UserError


class Registry:
    """What is used of MLflow's client, slow enough that everything that can overlap does."""

    def __init__(self, pause_s: float = 0.002) -> None:
        self.tags: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        self.version_tags: dict[str, dict[str, str]] = {}
        self.deleted: set[str] = set()
        self._pause_s = pause_s

    def get_registered_model(self, name: str) -> "Registry":
        time.sleep(self._pause_s)
        found = Registry()
        found.tags, found.aliases = dict(self.tags), dict(self.aliases)
        return found

    def get_model_version(self, name: str, number: str) -> str:
        if number in self.deleted:
            raise MlflowException("gone", RESOURCE_DOES_NOT_EXIST)
        return number

    def set_registered_model_tag(self, name: str, key: str, value: str) -> None:
        time.sleep(self._pause_s)
        self.tags[key] = value

    def delete_registered_model_tag(self, name: str, key: str) -> None:
        self.tags.pop(key, None)

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        time.sleep(self._pause_s)
        self.aliases[alias] = version

    def set_model_version_tag(self, name: str, version: str, key: str, value: str) -> None:
        self.version_tags.setdefault(version, {})[key] = value


class Version:
    name = "model"

    def __init__(self, number: int) -> None:
        self.version = str(number)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.tracking.turn._PAUSE_S", 0.005)


def at_once(number: int, work: Callable[[int], object]) -> list[object]:
    start = threading.Barrier(number)

    def run(index: int) -> object:
        start.wait()
        return work(index)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(run, range(number)))


def test_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, inside, most = Registry(), [], []

    def work(index: int) -> None:
        with turn(registry, "model"):
            inside.append(index)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(index)

    at_once(5, work)
    assert most == [1] * 5
    assert registry.tags == {}


def test_of_two_that_were_compared_with_the_same_version_one_takes_the_alias() -> None:
    registry = Registry()
    registry.aliases["champion"] = "1"

    def work(index: int) -> Decision:
        decision = Decision(True, ("Better.",), "1")
        return carry_out(registry, Version(index + 2), "champion", decision, "judged", compares=True)

    decisions = at_once(2, work)
    passed = [index for index, decision in enumerate(decisions) if decision.passed]
    assert len(passed) == 1
    assert registry.aliases["champion"] == str(passed[0] + 2)
    other = decisions[1 - passed[0]]
    assert "run the evaluate step again" in other.reasons[-1]
    assert held_by(registry, "model", "champion") == ["1", str(passed[0] + 2)]


def test_an_alias_that_was_moved_by_hand_in_between() -> None:
    registry = Registry(0)
    registry.aliases["champion"] = "1"
    set_alias = registry.set_registered_model_alias

    def set_and_lose(name: str, alias: str, version: str) -> None:
        set_alias(name, alias, version)
        if alias == "champion":
            set_alias(name, alias, "9")

    registry.set_registered_model_alias = set_and_lose
    decision = carry_out(registry, Version(2), "champion", Decision(True, (), "1"), "judged", compares=True)
    assert not decision.passed
    assert "belongs to version 9 now" in decision.reasons[-1]


def test_a_claim_of_a_process_that_died_is_passed_over_in_time() -> None:
    registry = Registry(0)
    registry.tags["shardline.claim.000000000000"] = json.dumps(time.time() - 1000)
    with turn(registry, "model"):
        pass
    registry.tags["shardline.claim.000000000000"] = json.dumps(time.time())
    with pytest.raises(UserError, match="has been moving an alias"), turn(registry, "model", patience_s=0.05):
        pass


def test_the_history_of_an_alias() -> None:
    registry = Registry(0)
    registry.aliases["champion"] = "1"  # before there was a history
    for version in ("2", "3"):
        move_alias(registry, "model", "champion", version)
    assert held_by(registry, "model", "champion") == ["1", "2", "3"]
    assert previous_holder(registry, "model", "champion") == "2"
    move_alias(registry, "model", "champion", "2")
    assert previous_holder(registry, "model", "champion") == "1"
    # The one that was taken back is not what comes before the next.
    move_alias(registry, "model", "champion", "4")
    assert held_by(registry, "model", "champion") == ["1", "2", "4"]
    registry.aliases["champion"] = "7"  # by hand
    assert previous_holder(registry, "model", "champion") == "4"
    registry.deleted = {"4", "2"}
    assert previous_holder(registry, "model", "champion") == "1"
    for version in range(8, 80):
        move_alias(registry, "model", "champion", str(version))
    assert len(held_by(registry, "model", "champion")) == 50
    assert alias_holder(registry, "model", "champion") == "79"
