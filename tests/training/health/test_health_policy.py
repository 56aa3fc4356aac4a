import pytest
import yaml

from training.config import RunConfig
from training.errors import UserError
from training.health.policy import load_policy, policy_of, save_policy
from training.run_folder import RunFolder


@pytest.fixture
def policy_file(tmp_path):
    def write(content):
        path = tmp_path / "policy.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


@pytest.mark.parametrize(
    ("action", "numbers"),
    [
        ("isolate", [54]),
        ("reboot", [79, 151, 168]),
        ("reset", [46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158]),
        ("restart", [13, 31, 94]),
        ("monitor", [43, 63, 92, 121]),
        ("follow", [45, *range(144, 151), 154]),
    ],
)
def test_the_built_in_policy_has_a_rule_for_each_xid_that_is_known(action, numbers):
    rules = load_policy().xids
    assert [number for number, rule in rules.items() if rule.action == action] == numbers
    assert all(rules[number].meaning and rules[number].source for number in numbers)


def test_a_users_file_changes_what_it_names_and_no_more(policy_file):
    given = load_policy(
        policy_file({"thresholds": {"disk_timeout_s": 3}, "xids": {94: "reset", 79: {"action": "isolate"}}})
    )
    built_in = load_policy()
    assert given.thresholds == built_in.thresholds.model_copy(update={"disk_timeout_s": 3.0})
    assert (given.xids[94].action, given.xids[79].action) == ("reset", "isolate")
    assert given.xids[79].meaning == built_in.xids[79].meaning
    assert {n: r for n, r in given.xids.items() if n not in (79, 94)} == {
        n: r for n, r in built_in.xids.items() if n not in (79, 94)
    }


@pytest.mark.parametrize("empty", ["", "# nothing yet\n", "thresholds:\nxids:\n"])
def test_an_empty_file_changes_nothing(policy_file, empty):
    assert load_policy(policy_file(empty)) == load_policy()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"treshold": {}}, "there is no key 'treshold'; did you mean thresholds?"),
        (
            {"thresholds": {"disk_timeout": 3}},
            "no threshold 'disk_timeout'; did you mean thresholds.disk_timeout_s?",
        ),
        ({"xids": {78: "reset"}}, "no rule for the XID 78; the nearest is 79"),
        ({"xids": {7900: "reset"}}, "no rule for the XID 7900; the nearest is 168"),
        ({"xids": {"-79": "reset"}}, "no rule for the XID '-79'; the nearest is 79"),
        ({"xids": {"all": "reset"}}, "no rule for the XID 'all'; give one of 13, 31"),
        ({"xids": {True: "reset"}}, "no rule for the XID True"),
        ({"xids": {79: "rebot"}}, "xids.79: there is no action 'rebot'; did you mean reboot?"),
        ({"xids": {79: None}}, "xids.79: there is no action None"),
        ({"xids": {79: {"acton": "reset"}}}, "no key 'acton'; did you mean xids.79.action?"),
        ({"thresholds": {"disk_timeout_s": "soon"}}, "thresholds.disk_timeout_s: input should be a valid number"),
        ({"thresholds": {"disk_timeout_s": -1}}, "thresholds.disk_timeout_s: input should be greater than 0"),
        ({"thresholds": {"disk_timeout_s": True}}, "thresholds.disk_timeout_s: input should be a valid number"),
        ({"thresholds": {"xid_repeats": True}}, "thresholds.xid_repeats: input should be a valid integer"),
        ({"thresholds": {"disk_timeout_s": "30"}}, "thresholds.disk_timeout_s: input should be a valid number"),
        ({"thresholds": {"burn_s": float("nan")}}, "thresholds.burn_s"),
        ([1], "has to be a mapping"),
        ({"xids": [79]}, "has to be a mapping"),
        ("a: [", "is not YAML"),
    ],
)
def test_what_is_no_policy_is_refused_by_name(policy_file, content, told):
    with pytest.raises(UserError) as refused:
        load_policy(policy_file(content))
    assert told in str(refused.value) and "health policy" in str(refused.value)


def test_all_problems_are_told_at_once(policy_file):
    with pytest.raises(UserError) as refused:
        load_policy(policy_file({"thresholds": {"a": 1}, "xids": {1: "reset", 79: "no"}}))
    assert len(str(refused.value).splitlines()) == 3


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UserError, match=r"cannot be read \(No such file or directory\): correct resilience"):
        load_policy(tmp_path / "none.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="it is no text"):
        load_policy(tmp_path / "binary")


def test_a_run_keeps_the_file_since_pods_do_not_see_the_users(tmp_path, policy_file):
    folder = RunFolder(tmp_path / "store", "a-run")
    folder.create(RunConfig.model_validate({"model": {"name": "m"}, "data": {"train": "d"}}))
    assert policy_of(folder) == load_policy()
    path = policy_file({"xids": {31: "reset"}})
    save_policy(folder, path)
    path.unlink()
    assert policy_of(folder).xids[31].action == "reset"
    save_policy(folder, None)
    assert policy_of(folder) == load_policy()
    with pytest.raises(UserError):
        save_policy(folder, policy_file({"x": 1}))
