"""What the card says of the measurements."""

import json

from components.register_model.card import measurements
from components.register_model.results import read_results
from tests.registering import ReadyRun, estimate


def test_a_line_with_intervals_for_every_source(ready_run: ReadyRun) -> None:
    folder = ready_run()
    for name, shift in (("base", 0.5), ("tuned", 0.0)):
        file = folder.evaluation / f"{name}.json"
        content = json.loads(file.read_text())
        changes = {"base": estimate(-0.5, 0.25)} if name == "tuned" else {}
        content["sources"] = [
            {"name": "org/data", "loss": estimate(1.5 + shift, 0.125), "changes": changes},
            {"name": "a|b", "loss": estimate(2.5 + shift, None), "changes": {}},
        ]
        file.write_text(json.dumps(content))
    lines = measurements(read_results(folder))
    assert "| loss on org/data | 2 (1.875 to 2.125) | 1.5 (1.375 to 1.625) | -0.5 (-0.75 to -0.25) |" in lines
    assert "| loss on a/b | 3 | 2.5 | -0.5 |" in lines
