"""What a job waits for: other jobs, and how they must have ended. Plain data, and its form in texts."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from adlro.errors import InvalidInput
from adlro.records.named import NamedEnum


class DependencyCondition(NamedEnum):
    """How a job that another one waits for must have ended; numbers as in job.proto.

    Of an array: SUCCEEDED: all of its jobs; NOT_SUCCEEDED: at least one did not succeed, once all have ended.
    """

    SUCCEEDED = 1
    ENDED = 2
    NOT_SUCCEEDED = 3


CONDITION_WORDS = {
    DependencyCondition.SUCCEEDED: "ok",
    DependencyCondition.ENDED: "any",
    DependencyCondition.NOT_SUCCEEDED: "fail",
}
"""As people write them: `--after job-17:ok`."""


@dataclass(frozen=True, slots=True)
class JobDependency:
    """A job, or an array ("array-20"), that must have ended before another job may start, and how."""

    job_id: str
    condition: DependencyCondition = DependencyCondition.SUCCEEDED


_CONDITIONS = {word: condition for condition, word in CONDITION_WORDS.items()} | {
    "": DependencyCondition.SUCCEEDED,
    "afterok": DependencyCondition.SUCCEEDED,
    "afterany": DependencyCondition.ENDED,
    "afternotok": DependencyCondition.NOT_SUCCEEDED,
}
_NUMBER = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_ID = re.compile(r"(job|array)-[1-9][0-9]{0,17}", re.ASCII)


def read_dependencies(text: str, names: Collection[str] = ()) -> list[JobDependency]:
    """What a job waits for, of a text such as `job-17`, `array-20:any` or `17:fail,18`.

    Args:
        text: as written.
        names: of other jobs, such as those of a file; they come first, and take the place of ids.

    Raises:
        InvalidInput: it names no job, or no condition.
    """
    found = []
    for part in text.split(","):
        name, colon, word = part.strip().partition(":")
        if name not in names:
            name = f"job-{name}" if _NUMBER.fullmatch(name) else name
            if not _ID.fullmatch(name):
                known = f", or the name of a job of this file ({', '.join(sorted(names))})" if names else ""
                raise InvalidInput(
                    f"after: {part.strip()!r}: write the id of a job or an array, such as job-17{known}", field="after"
                )
        if word.lower() not in _CONDITIONS or (colon and not word):
            raise InvalidInput(f"after: {part.strip()!r}: behind the colon stands ok, any or fail", field="after")
        found.append(JobDependency(name, _CONDITIONS[word.lower()]))
    return found
