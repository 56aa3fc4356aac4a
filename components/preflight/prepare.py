"""From the pipeline's parameters to a checked run folder."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from components.cluster.choose import launcher_name
from components.preflight.checks import Finding, run_checks
from components.preflight.pins import keep_pins
from components.preflight.unchanged import finished_before, mark_of, save_mark
from components.step import Step
from training.config import ClusterConfig, launcher_problems
from training.errors import UserError
from training.health.policy import save_policy
from training.resolve import load_recipe, resolve, split_overrides, to_yaml
from training.store import Store


class Prepared(NamedTuple):
    """What preflight came to.

    Attributes:
        page: Markdown for people: the checks and the resolved config.
        proceed: Whether there is something to train.
    """

    page: str
    proceed: bool


def prepare(
    step: Step,
    recipe: str,
    overrides: str,
    flat: Mapping[str, Any],
    store_claim: str = "",
    *,
    skip_unchanged: bool = False,
) -> Prepared:
    """Resolve the config, check it against the world, and create the run's folder.

    Args:
        step: The step's surroundings.
        recipe: Name, path or text of the recipe.
        overrides: `section.field=value` texts.
        flat: Dotted field → the pipeline's parameter; empty and zero ones keep the recipe's value.
        store_claim: Claim that holds the store, which a job in the cluster mounts too.
        skip_unchanged: Do not proceed if a finished run was trained from the same.

    Raises:
        UserError: All problems that were found, one a line.
    """
    _refuse_macros(recipe, overrides, *map(str, flat.values()))
    # Forms keep the blanks that come along when a text is pasted.
    stripped = {field: value.strip() if isinstance(value, str) else value for field, value in flat.items()}
    given = {field: value for field, value in stripped.items() if value not in ("", 0)}
    config = resolve(load_recipe(recipe), split_overrides(overrides), given)
    if step.folder.config_file.is_file():
        keep_pins(config, step.folder.config())
    config.cluster.launcher = launcher_name(config.cluster)
    if problems := launcher_problems(config.cluster):  # of a launcher that was chosen just now
        raise UserError("\n".join(problems))
    if config.cluster.launcher != "local":
        _use_claim(config.cluster, store_claim.strip())
    Store(step.folder.root)
    findings = run_checks(config, step.folder.root)
    problems = [finding.text for finding in findings if not finding.ok]
    if problems:
        raise UserError("\n".join(problems))
    for finding in findings:
        for field, value in finding.pins.items():
            section, _, name = field.partition(".")
            setattr(getattr(config, section), name, value)
    for finding in findings:
        step.note(f"{finding.subject}: {finding.text}")
    step.detail = f"{config.model.name} on {config.data.train_name}"
    contents = next(finding.contents for finding in findings if finding.subject == "data")
    mark = mark_of(config, contents)
    before = finished_before(step.folder, mark) if skip_unchanged else None
    if before is not None:
        step.detail = f"nothing has changed since the run '{before}': it is not trained again"
        step.note(step.detail)
        return Prepared(_page(step.run, findings, f"{step.detail}\n"), False)
    step.folder.create(config)
    save_policy(step.folder, config.resilience.health_policy)
    save_mark(step.folder, mark)
    return Prepared(_page(step.run, findings, f"### Configuration\n\n```yaml\n{to_yaml(config)}```\n"), True)


def _use_claim(cluster: ClusterConfig, mounted: str) -> None:
    """Let the job mount what the steps do.

    Raises:
        UserError: The configuration names another claim; in another namespace it may have another name.
    """
    if cluster.store_claim is None:
        cluster.store_claim = mounted or None
    elif mounted and cluster.store_claim != mounted and cluster.namespace is None:
        raise UserError(
            f"cluster.store_claim is '{cluster.store_claim}', but the pipeline's steps mount '{mounted}', so the "
            "job would not see the run's folder: leave cluster.store_claim out, and set the parameter store_claim "
            "(shardline submit --claim)"
        )


def _refuse_macros(*texts: str) -> None:
    if any("[[" in text and "Time." in text for text in texts):
        raise UserError(
            "a parameter still holds a macro of Kubeflow ([[ScheduledTime.…]] or the like), which it fills in "
            "only for a recurring run that follows the newest version of the pipeline: make the schedule with "
            "shardline schedule --latest"
        )


def _page(run: str, findings: list[Finding], rest: str) -> str:
    # A bar would end the table's cell.
    rows = "\n".join(f"| {finding.subject} | {finding.text.replace('|', '&#124;')} |" for finding in findings)
    return f"## {run}\n\n| check | found |\n|---|---|\n{rows}\n\n{rest}"
