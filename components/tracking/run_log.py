"""Writing to one MLflow run, without writing anything twice."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from components.tracking.curves import Group, Point
from components.tracking.texts import safe_name, shortened

_METRICS_PER_BATCH = 1000
_PARAMS_AND_TAGS_PER_BATCH = 100
_PARAM_LENGTH = 500
"""The first two are MLflow's limits. The third was the limit of older servers, and is ample for a setting; the
artifact config.yaml has every value whole."""


class RunLog:
    """One MLflow run.

    Args:
        client: The `MlflowClient`.
        run_id: Of the run.
    """

    def __init__(self, client: Any, run_id: str) -> None:
        self.client = client
        self.run_id = run_id
        self._known: dict[str, set[int]] = {}

    def metrics(self, groups: Iterable[Group]) -> None:
        """Log the groups that are not logged yet, by metric and step of each one's last point."""
        fresh = [group for group in groups if group and group[-1].step not in self._steps_of(group[-1].key)]
        points = [_metric(point) for group in fresh for point in group]
        for batch in _batches(points, _METRICS_PER_BATCH):
            self.client.log_batch(self.run_id, metrics=batch)
        for group in fresh:
            self._steps_of(group[-1].key).add(group[-1].step)

    def values(self, points: Iterable[Point]) -> None:
        """Log single values; MLflow keeps a point that comes again, with the same time and value, once."""
        self.client.log_batch(self.run_id, metrics=[_metric(point) for point in points])

    def params(self, values: Mapping[str, str]) -> dict[str, str]:
        """Log parameters; MLflow keeps the first value of each. Returns those that were another before."""
        from mlflow.entities import Param

        known = self.client.get_run(self.run_id).data.params
        wanted = {safe_name(key): shortened(value, _PARAM_LENGTH) for key, value in values.items()}
        fresh = [Param(key, value) for key, value in wanted.items() if key not in known]
        for batch in _batches(fresh, _PARAMS_AND_TAGS_PER_BATCH):
            self.client.log_batch(self.run_id, params=batch)
        return {key: value for key, value in wanted.items() if known.get(key, value) != value}

    def tags(self, values: Mapping[str, str]) -> None:
        """Set tags."""
        from mlflow.entities import RunTag

        tags = [RunTag(key, shortened(value)) for key, value in values.items()]
        for batch in _batches(tags, _PARAMS_AND_TAGS_PER_BATCH):
            self.client.log_batch(self.run_id, tags=batch)

    def end(self, status: str, at: int | None = None) -> None:
        """Give the run a final status, unless it has that one.

        Args:
            status: FINISHED, FAILED or KILLED.
            at: When, in milliseconds since the epoch. Unset: now.
        """
        if self.client.get_run(self.run_id).info.status != status:
            self.client.set_terminated(self.run_id, status=status, end_time=at)

    def _steps_of(self, key: str) -> set[int]:
        if key not in self._known:
            self._known[key] = {point.step for point in self.client.get_metric_history(self.run_id, key)}
        return self._known[key]


def _metric(point: Point) -> Any:
    from mlflow.entities import Metric

    return Metric(point.key, point.value, point.timestamp, point.step)


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    """Parts of at most so many items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
