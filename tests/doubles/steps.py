"""A step that remembers what it was told, without a process to exit."""

from training.config import RunConfig
from training.run_folder import RunFolder


class RecordingStep:
    """Stands in for components.step.Step. Each has a run of its own in the store."""

    def __init__(self, root, config, run="run"):
        self.folder = RunFolder(root, run)
        self.folder.create(RunConfig.model_validate(config))
        self.notes = []
        self.detail = ""

    def note(self, text):
        self.notes.append(text)
