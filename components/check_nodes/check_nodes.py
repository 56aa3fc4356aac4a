"""The deep checks of a run's nodes: the work of the check_nodes step."""

from pathlib import Path

from components.check_nodes.report import as_markdown
from components.jobs.describe import TaskSettings
from components.jobs.exclusions import exclude
from components.jobs.supervisor import Work, bring_home
from components.step import Step, StepFailed
from training.config import RunConfig
from training.health.deep_result import NAME, DeepResult, load_deep
from training.run_folder import RunFolder
from training.store import write_atomically

_NOT_ASKED_FOR = "The nodes were not checked: set `resilience.deep_checks` to have that done.\n"


def check_run(step: Step, report_path: str | Path, task: TaskSettings | None = None, job: str = "") -> None:
    """Check the nodes by a job of the training's size, and leave out those that fall short.

    A run whose nodes were checked is not checked again when it goes on, unless its machine must not train.

    Args:
        step: The step at work.
        report_path: Where the report goes, as Markdown.
        task: Settings of the KFP task, for the pods of a cluster job.
        job: Name of the pipeline job.

    Raises:
        StepFailed: The only machine of a local run computes wrongly, or the job failed as often as it may.
    """
    folder, config = step.folder, step.folder.config()
    if not config.resilience.deep_checks:
        step.detail = "not asked for"
        write_atomically(Path(report_path), _NOT_ASKED_FOR)
        return
    found, report_file = _found(folder), folder.health / "report.md"
    if found is None:
        folder.health.mkdir(parents=True, exist_ok=True)
        work = Work(
            folder.seen_from("health"), _job_config(config), is_done=lambda: bool(_found(folder)), doing="checked"
        )
        bring_home(step, work, (task or TaskSettings()).or_saved(folder), job)
        found = _found(folder)
        assert found is not None, "a job that is done without a result"
    else:
        step.note("the nodes were checked before")
    report = as_markdown(found)
    if not report_file.is_file():  # comes last, so that what was found has its effect after a kill, too
        _leave_out(step, config, found)
        write_atomically(report_file, report)
    write_atomically(Path(report_path), report)
    step.detail = (
        f"{len(found.burns)} ranks on {len(found.hosts)} node(s), {len(found.bad_hosts)} of them fell short"
    )


def _leave_out(step: Step, config: RunConfig, found: DeepResult) -> None:
    for blame in found.blames:
        step.warn(blame.text)
    bad = found.bad_hosts
    if config.cluster.launcher == "local":
        wrong = [blame.text for blame in found.blames if blame.fault == "faulty"]
        if wrong:
            (step.folder.health / NAME).unlink()  # it may be mended by the next start
            raise StepFailed(f"this machine must not train: {'; '.join(wrong)}")
        return
    if len(bad) > len(set(found.hosts)) / 2:
        # More likely something that they share, and without them there would be too few.
        step.warn(f"{len(bad)} of {len(set(found.hosts))} machines fell short, so none is left out")
        return
    if bad and not config.resilience.exclude_for_s:
        step.warn(f"{', '.join(bad)} stays in use: resilience.exclude_for_s is 0")
        return
    exclude(step.folder, bad, config.resilience.exclude_for_s)
    for host in bad:
        step.note(f"{host} is not used for {config.resilience.exclude_for_s:,} s")


def _job_config(config: RunConfig) -> RunConfig:
    """The run's, without what belongs to its training alone."""
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"metrics_port": None})})


def _found(folder: RunFolder) -> DeepResult | None:
    return load_deep(folder.health / NAME)
