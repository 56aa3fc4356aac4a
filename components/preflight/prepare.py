"""From the pipeline's parameters to a checked run folder."""

from collections.abc import Mapping
from typing import Any

from components.preflight.checks import run_checks
from components.step import Step
from training.config import RunConfig
from training.errors import UserError
from training.hub import is_commit
from training.resolve import find_recipe, read_recipe, resolve, split_overrides, to_yaml
from training.run_folder import RunFolder
from training.store import Store


def prepare(step: Step, recipe: str, overrides: str, flat: Mapping[str, Any]) -> str:
    """Resolve the config, check it against the world, and create the run's folder.

    Args:
        step: The step's surroundings.
        recipe: Name or path of the recipe.
        overrides: `section.field=value` texts.
        flat: Dotted field → the pipeline's parameter; empty and zero ones keep the recipe's value.

    Returns:
        Markdown for people: the checks and the resolved config.

    Raises:
        UserError: All problems that were found, one a line.
    """
    given = {field: value for field, value in flat.items() if value not in ("", 0)}
    config = resolve(read_recipe(find_recipe(recipe)), split_overrides(overrides), given)
    config = _keep_pins(config, step.folder)
    Store(step.folder.root)
    findings = run_checks(config, step.folder.root)
    problems = [finding.text for finding in findings if not finding.ok]
    if problems:
        raise UserError("\n".join(problems))
    for finding in findings:
        for field, value in finding.pins.items():
            section, _, name = field.partition(".")
            setattr(getattr(config, section), name, value)
    step.folder.create(config)
    for finding in findings:
        step.note(f"{finding.subject}: {finding.text}")
    step.detail = f"{config.model.name} on {config.data.train}"
    # A bar would end the table's cell.
    rows = "\n".join(f"| {finding.subject} | {finding.text.replace('|', '&#124;')} |" for finding in findings)
    return (
        f"## {step.run}\n\n| check | found |\n|---|---|\n{rows}\n\n"
        f"### Configuration\n\n```yaml\n{to_yaml(config)}```\n"
    )


def _keep_pins(config: RunConfig, folder: RunFolder) -> RunConfig:
    """A run that exists was pinned at its first start; its branch may have moved since."""
    if not folder.config_file.is_file():
        return config
    saved = folder.config()
    # Pins of another model or data set would not be its commits; creating the folder refuses the change.
    if saved.model.name == config.model.name and not is_commit(config.model.revision):
        config.model.revision = saved.model.revision
    if saved.data.train == config.data.train and not is_commit(config.data.revision):
        config.data.revision = saved.data.revision
    return config
