"""Results as they are kept for the steps after, and for notebooks."""

from components.evaluate.results import load_result, save_result
from tests.components.evaluate.results import compared, result


def test_a_result_comes_back_as_it_was(tmp_path):
    found = compared(result("base", 3.2), result("tuned", 2.2), result("champion", 2.4), sources=("a", "b"))
    for name, one in found.items():
        save_result(one, tmp_path / f"{name}.json")
        assert load_result(tmp_path / f"{name}.json") == one


def test_a_file_s_time_tells_when_its_content_was_measured(tmp_path):
    file = tmp_path / "base.json"
    save_result(result("base", 3.2), file)
    before = file.stat().st_mtime_ns
    save_result(result("base", 3.2), file)
    assert file.stat().st_mtime_ns == before
    save_result(result("base", 3.3), file)
    assert load_result(file).loss == 3.3
