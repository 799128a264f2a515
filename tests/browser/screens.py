"""The screens that tests and screenshots go through: name and path on the made-up cluster."""

from __future__ import annotations

SCREENS = {
    "cluster": "/",
    "queue": "/queue",
    "job_waiting": "/jobs/job-26",
    "job_running": "/jobs/job-2",
    "gpu": "/gpus/v100-0%2F1",
    "gantt": "/gantt",
    "decisions": "/decisions",
    "decision": "/decisions/d-595",
    "policies": "/policies",
    "learning": "/learning",
    "reports": "/reports",
    "submit": "/submit",
}
