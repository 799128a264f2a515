"""The question before a job is cancelled."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen

from adlro.cli.top.lines import wrapped
from adlro.cli.top.screen.drawn_lines import LineBlock
from adlro.records.jobs import Job, JobState


class CancelQuestion(ModalScreen[bool]):
    """Whether a job shall be cancelled: y, or anything else.

    Args:
        job: the job.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job

    def compose(self) -> ComposeResult:
        """Its parts, from top to bottom."""
        with Vertical():
            yield LineBlock(id="question")

    def on_mount(self) -> None:
        """Asks."""
        job, width = self.job, min(58, max(self.app.size.width - 10, 20))
        state = "waiting" if job.state is JobState.PENDING else job.state.name.lower()
        what = f"{job.job_id} ({job.spec.name}, of {job.spec.user}), which is {state}"
        lines = [
            *wrapped(f"Cancel {what}?", width),
            [],
            [("y", "bold"), (" cancel it    ", ""), ("Esc, n", "bold"), (" keep it", "")],
        ]
        row = [(0, 11, "screen.answer(True)"), (15, 30, "screen.answer(False)")]
        self.query_one(LineBlock).show(lines, [[] for _ in lines[:-1]] + [row])

    def action_answer(self, sure: bool) -> None:
        """Takes the answer."""
        self.dismiss(sure)

    def on_key(self, event: Key) -> None:
        """Yes by `y` alone: Enter opened the job before, and is easily pressed twice."""
        event.stop()
        self.dismiss(event.key in ("y", "Y"))
