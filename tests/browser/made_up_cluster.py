"""A made-up cluster for tests of the page: figures from a seed, always the same, in the shapes of the protocol."""

from __future__ import annotations

import math
import random
from typing import Any
from urllib.parse import parse_qs

HOSTILE = '<img src=x onerror="document.title=1">\u202egnp.exe'
USERS = ("ada", "bob", "carol", "dan")
TYPES = ("machine_learning", "simulation", "data_processing")
REASONS = ("resources",) * 14 + ("policy",) * 4 + ("launching", "begin_time", "no_fitting_gpu")
MODELS = ("v100_sxm2", "rtx6000", "t4")
METRICS = ("utilization", "memory_used", "temperature", "power")
RUNS: dict[str, dict[str, Any]] = {
    "run-a": {"recipe": "gang", "seed": 1, "learning_rate": 1e-3},
    "run-b": {"recipe": "gang", "seed": 1, "learning_rate": 3e-4},
    "run-c": {"recipe": "gang", "seed": 2, "learning_rate": 3e-4},
    "run-d": {"recipe": "dqn", "seed": 1, "learning_rate": 1e-3},
}
SCREENS = ("cluster", "queue", "gantt", "decisions", "policies", "learning", "reports", "submit")


class Cluster:
    """The figures. Args: node_count, of 4 GPUs each; waiting, running: jobs; seed."""

    def __init__(self, node_count: int = 8, waiting: int = 120, running: int = 20, seed: int = 7) -> None:
        draw = random.Random(seed)
        self.now_s = 94_447.0
        self.nodes = [f"{MODELS[index * 3 // node_count].split('_')[0]}-{index}" for index in range(node_count)]
        self.gpus = [f"{node}/{slot}" for node in self.nodes for slot in range(4)]
        self.node = [index // 4 for index in range(len(self.gpus))]
        self.model = [each * 3 // node_count for each in self.node]
        self.states = bytearray(1 if index < running else 0 for index in range(len(self.gpus)))
        last = len(self.gpus) - 1
        self.states[last], self.states[last - 4], self.states[last - 5] = 3, 4, 0 | 16
        self.planes = {
            name: bytearray(
                255
                if self.states[index] == 3
                else draw.randrange(120, 255)
                if self.states[index] & 15 == 1
                else draw.randrange(12)
                for index in range(len(self.gpus))
            )
            for name in METRICS
        }
        self.jobs: list[dict[str, Any]] = []
        for number in range(waiting + running):
            runs = number < running
            self.jobs.append(self._job(number, runs, draw))
        self.running_count = running
        self.sources: dict[str, Any] = {
            name: {"state": "live", "since_unix_s": 0, "error": ""}
            for name in ("ingest", "orchestrator", "decompose", "cluster")
        }
        self.alerts = [
            {"level": "warn", "text": "Node t4-7 is drained since 9 h: fan", "href": "/?metric=state"},
            {
                "level": "warn",
                "text": "hold_greedy_fixed decides since 02:11, not dqn: out of range (2 of 31 figures)",
                "href": "/policies",
            },
        ]

    def _job(self, number: int, runs: bool, draw: random.Random) -> dict[str, Any]:
        gpus = [self.gpus[number]] if runs else []
        submit_s = self.now_s - draw.uniform(5, 2_000)
        return {
            "id": f"job-{number + 1}",
            "name": HOSTILE
            if number == 25
            else draw.choice(("resnet50", "bert_large", "gromacs", "etl_daily", "llm_eval")),
            "user": draw.choice(USERS),
            "type": draw.choice(TYPES),
            "state": "running" if runs else "pending",
            "reason": None if runs else draw.choice(REASONS),
            "message": "" if runs else "waits for a GPU with 15,000 MiB of memory and 8 cores on its node",
            "priority": round(draw.random(), 2),
            "submit_s": submit_s,
            "wait_s": 40.0 + number if runs else None,
            "gpu_count": 1 if runs or number % 9 else 4,
            "gpus": gpus,
            "place": None if runs else number - 19,
        }

    def job(self, job_id: str) -> dict[str, Any] | None:
        return next((each for each in self.jobs if each["id"] == job_id), None)

    def me(self, *, users_known: bool) -> dict[str, Any]:
        return {
            "user": "ada",
            "roles": ["operator"],
            "users_known": users_known,
            "screens": list(SCREENS),
            "actions": ["submit", "cancel", "hold", "release", "requeue", "drain", "policy", "clock"],
            "clock": "virtual",
            "grafana_url": "",
        }

    # --- live topics ---

    def topic(self, key: str) -> tuple[dict[str, Any], bytes]:
        """The data and body of a snapshot; KeyError with a sentence for an unknown topic."""
        name, _, query = key.partition("?")
        values = {each: found[0] for each, found in parse_qs(query).items()}
        if name == "head":
            return self.head(), b""
        if name == "gpus":
            planes = {"state": self.states, **self.planes}
            data = {
                "gpus": self.gpus,
                "models": list(MODELS),
                "model": self.model,
                "nodes": self.nodes,
                "node": self.node,
                "metrics": list(METRICS),
                "planes": list(planes),
                "jobs": {str(index): [f"job-{index + 1}"] for index in range(self.running_count)},
            }
            return data, b"".join(bytes(each) for each in planes.values())
        if name == "queue":
            return self.queue(values), b""
        if name == "job" and self.job(values["id"]):
            return self.job_record(values["id"]), b""
        if name == "gpu" and values["id"] in self.gpus:
            return self.gpu(values["id"]), b""
        if name == "decisions":
            rows = [
                row
                for row in self.decisions()
                if not values.get("differs") or (row["shadow"] and not row["shadow"]["agrees"])
            ]
            return {"rows": rows[: int(values.get("count", 50))]}, b""
        raise KeyError(f"there is nothing to watch at {key}")

    def head(self) -> dict[str, Any]:
        by_reason: dict[str, int] = {}
        for each in self.jobs:
            if each["state"] == "pending":
                by_reason[each["reason"]] = by_reason.get(each["reason"], 0) + 1
        return {
            "time_s": self.now_s,
            "wall_unix_s": 0,
            "clock": {"mode": "virtual", "scale": 1, "paused": False},
            "cluster": "default",
            "policy": "dqn",
            "deciding_policy": "hold_greedy_fixed",
            "deciding_basis": "out_of_range",
            "queue_length": sum(by_reason.values()),
            "queue_by_reason": by_reason,
            "running": self.running_count,
            "running_by_model": {"v100_sxm2": 12, "rtx6000": 8},
            "allocated_gpus": self.running_count,
            "usable_gpus": len(self.gpus) - 2,
            "gpu_count": len(self.gpus),
            "busy_ratio": 0.58,
            "event_lag": 412,
            "drained": ["t4-7"],
            "lost_gpu_count": 1,
            "drift": {"flagged": 1, "by_chance": 0.3},
            "wait_p95_s": 374.0,
            "failed_ratio_1h": 0.021,
            "alerts": self.alerts,
        }

    def queue(self, values: dict[str, str]) -> dict[str, Any]:
        rows = self.jobs
        for word in values.get("filter", "").split():
            name, colon, wanted = word.partition(":")
            if colon:
                rows = [each for each in rows if each.get(name) == wanted]
            else:
                rows = [each for each in rows if word.lower() in each["id"] + each["name"].lower()]
        sort = values.get("sort", "place")
        column = sort.removeprefix("-")
        rows = sorted(rows, key=lambda each: (each[column] is None, each[column] or 0), reverse=sort.startswith("-"))
        first = int(values["from"])
        states = {"pending": len(self.jobs) - self.running_count, "running": self.running_count}
        return {
            "total": len(rows),
            "from": first,
            "rows": rows[first : first + int(values["count"])],
            "counts": {"state": states, "reason": self.head()["queue_by_reason"]},
        }

    def job_record(self, job_id: str) -> dict[str, Any]:
        job = self.job(job_id)
        assert job is not None
        runs = job["state"] == "running"
        started = {
            "attempt": 1,
            "gpu_ids": job["gpus"],
            "gpu_model": "v100_sxm2",
            "node_ids": ["v100-0"],
            "outcome": "",
        }
        return job | {
            "application": "resnet50_fp16",
            "start_s": self.now_s - 300 if runs else None,
            "end_s": None,
            "gpu_ids": job["gpus"],
            "gpu_model": "v100_sxm2" if runs else "",
            "cpu_cores": 8,
            "memory_mib": 32_768,
            "gpu_memory_mib": 15_000,
            "time_limit_s": 7_200,
            "labels": {"team": HOSTILE},
            "has_logs": runs,
            "may_cancel": True,
            "may_change": True,
            "may_hold": not runs,
            "may_release": False,
            "may_requeue": False,
            "asked": [],
            "after": [],
            "array": None,
            "held_by": None,
            "command_line": "adlro submit --type ml --gpus 1 --cores 8 --gpu-memory 15000",
            "attempts": [started | {"start_s": self.now_s - 300}] if runs else [],
        }

    def gpu(self, gpu_id: str) -> dict[str, Any]:
        index = self.gpus.index(gpu_id)
        return {
            "id": gpu_id,
            "model": MODELS[self.model[index]],
            "node": self.nodes[self.node[index]],
            "memory_mib": 32_768,
            "state": ("idle", "allocated", "shared", "lost", "drained", "drained")[self.states[index] & 15],
            "drained": self.states[index] & 15 >= 4,
            "jobs": [f"job-{index + 1}"] if index < self.running_count else [],
            "drift": {"score": 1.2, "flagged": bool(self.states[index] & 16), "speed_ratio": 0.97, "job_count": 41},
            "spec": {"power_limit_w": 300, "max_temperature_c": 87, "memory_bandwidth_gb_per_s": 900},
            "values": {"utilization_ratio": 0.81, "memory_used_mib": 20_480, "temperature_c": 61, "power_w": 241},
        }

    def decisions(self) -> list[dict[str, Any]]:
        rows = []
        for number in range(60):
            agrees = number % 4 != 1
            rows.append(
                {
                    "id": f"d-{600 - number}",
                    "time_s": self.now_s - 7 * number,
                    "queue_length": 100 + number % 30,
                    "policy": "dqn",
                    "deciding_policy": "dqn" if number % 5 else "hold_greedy_fixed",
                    "basis": "policy" if number % 5 else "margin",
                    "basis_text": "" if number % 5 else "the two best differ by .01",
                    "job": f"job-{20 - number % 20}",
                    "gpu_ids": [self.gpus[number % 20]],
                    "gpu_count": 1,
                    "score": 0.605,
                    "margin": 0.012 * (number % 9),
                    "hold_score": 0.295,
                    "decision_us": 1_300 + number,
                    "shadow": {
                        "policy": "fcfs",
                        "job": f"job-{20 - number % 20 - (not agrees)}",
                        "gpu": self.gpus[3],
                        "agrees": agrees,
                    },
                    "base": {"job": "job-7", "gpu": self.gpus[3]},
                }
            )
        return rows

    # --- questions ---

    def answer(self, path: str, query: dict[str, str]) -> dict[str, Any] | None:
        parts = path.split("/")
        match parts[0]:
            case "jobs" if len(parts) == 3:
                text = "".join(f"epoch {number} loss {2 / (number + 1):.3f}\n" for number in range(40)) + HOSTILE
                return {
                    "stream": query["stream"],
                    "offset": 0,
                    "size_bytes": len(text),
                    "text": text,
                    "complete": False,
                }
            case "jobs" if self.job(parts[1]):
                return self._job_answer(parts[1])
            case "gpus" if "/".join(parts[1:]) in self.gpus:
                return self._gpu_answer("/".join(parts[1:]))
            case "decisions" if len(parts) == 1:
                return self._older_decisions(query)
            case "decisions":
                return self._decision_answer(parts[1])
            case "gantt":
                return self.gantt(query)
            case "load":
                return self.load(float(query.get("span_s") or 3_600))
            case "policies":
                return self._policies()
            case "capacity":
                return self._capacity(query)
            case "runs":
                return self._runs() if len(parts) == 1 else self._run(parts[1])
            case "reports":
                rows = [
                    {"policy": name, "metric": "mean JCT, s", "mean": mean, "low": mean - 9, "high": mean + 9}
                    for name, mean in (("dqn", 301.0), ("hold_greedy_fixed", 322.0), ("fcfs", 411.0))
                ]
                report = {
                    "name": "grid",
                    "title": "Grid of loads",
                    "written_unix_s": 1_760_000_000,
                    "size_bytes": 4_900_000,
                }
                return {"reports": [report | {"rows": rows}]}
        return None

    def _job_answer(self, job_id: str) -> dict[str, Any]:
        job = self.job_record(job_id)
        waits = job["state"] == "pending"
        waiting = {
            "category": "resources",
            "sentence": "It needs 15,000 MiB of GPU memory and 8 cores on its node; no such GPU is free.",
            "place": 37,
            "queue_length": 120,
            "gpus": [
                {"reason": "busy", "text": "busy with other jobs", "gpu_count": 20},
                {"reason": "cores", "text": "idle, but their node lacks cores", "gpu_count": 8},
                {"reason": "memory", "text": "memory too small", "gpu_count": 2},
            ],
            "advice": [{"text": "Ask for 4 cores: 8 GPUs fit now", "gpu_count": 8}],
            "start": {"low_s": 180, "median_s": 340, "high_s": 540},
            "record": {"forecast_count": 200, "within_ratio": 0.83},
        }
        prediction = {
            "now": [
                {"gpu_model": "v100_sxm2", "median_s": 712, "low_s": 540, "high_s": 1_020, "basis": "similar_jobs"},
                {"gpu_model": "t4", "median_s": 1_900, "low_s": 1_100, "high_s": 3_300, "basis": "similar_jobs"},
            ],
            "decided": None
            if waits
            else {
                "gpu_model": "v100_sxm2",
                "median_s": 690,
                "low_s": 500,
                "high_s": 990,
                "basis": "similar_jobs",
                "time_s": 0,
            },
            "evidence": [{"job_id": "job-2", "similarity": 0.94, "runtime_s": 701}],
        }
        return {
            "job": job,
            "now_s": self.now_s,
            "waiting": waiting if waits else None,
            "prediction": prediction,
            "decision_id": None if waits else "d-590",
        }

    def _gpu_answer(self, gpu_id: str) -> dict[str, Any]:
        times = [self.now_s - 3_600 + 30 * step for step in range(121)]
        wave = [0.5 + 0.4 * math.sin(step / 11) for step in range(121)]
        return {
            "gpu": self.gpu(gpu_id),
            "series": {
                "time_s": times,
                "metrics": {
                    "utilization_ratio": wave,
                    "memory_used_mib": [20_000 * each for each in wave],
                    "temperature_c": [40 + 30 * each for each in wave],
                    "power_w": [80 + 200 * each for each in wave],
                },
            },
            "attempts": [{"job": "job-2", "start_s": times[0], "end_s": times[50], "outcome": "succeeded"}],
            "grafana_url": "",
        }

    def _older_decisions(self, query: dict[str, str]) -> dict[str, Any]:
        to_s, most = float(query.get("to") or self.now_s), int(query.get("count") or 50)
        rows = [each for each in self.decisions() if each["time_s"] < to_s]
        return {"decisions": rows[:most], "older_s": rows[most - 1]["time_s"] if len(rows) > most else None}

    def _decision_answer(self, decision_id: str) -> dict[str, Any] | None:
        row = next((each for each in self.decisions() if each["id"] == decision_id), None)
        if row is None:
            return None
        candidates = [
            {
                "job": f"job-{20 - index % 3}",
                "gpu_id": self.gpus[index],
                "gpu_model": MODELS[0],
                "expected_runtime_s": 700 + 10 * index,
                "score": 0.605 - 0.02 * index,
                "node_count": 1,
            }
            for index in range(12)
        ]
        return {
            "decision": row
            | {
                "summary": "The best of 12 pairs by the network's values.",
                "candidates": candidates,
                "candidates_left_out": 0,
                "masked": [{"reason": "too_small", "gpu_count": 8, "example_gpu_ids": self.gpus[-3:]}],
                "prediction": {
                    "gpu_model": "v100_sxm2",
                    "median_s": 690,
                    "low_s": 500,
                    "high_s": 990,
                    "basis": "similar_jobs",
                },
                "ran_s": 702.0,
            }
        }

    def gantt(self, query: dict[str, str]) -> dict[str, Any]:
        to_s = float(query.get("to") or self.now_s)
        from_s = float(query.get("from") or to_s - 3_600)
        draw = random.Random(3)
        bars: dict[str, list[Any]] = {
            name: [] for name in ("gpu", "start_s", "end_s", "job", "name", "user", "type", "outcome", "differs")
        }
        number = 1_000
        for gpu in range(len(self.gpus)):
            at = self.now_s - 7_200
            while at < self.now_s:
                end = at + draw.uniform(60, 900)
                number += 1
                if end > from_s and at < to_s:
                    row = (
                        gpu,
                        at,
                        end if end < self.now_s else None,
                        f"job-{number}",
                        draw.choice(("resnet50", "gromacs")),
                        USERS[number % 4],
                        TYPES[number % 3],
                        "running" if end >= self.now_s else ("failed" if number % 17 == 0 else "succeeded"),
                        int(number % 5 == 0),
                    )
                    for name, value in zip(bars, row, strict=True):
                        bars[name].append(value)
                at = end + draw.uniform(0, 120)
        common = {
            "from_s": from_s,
            "to_s": to_s,
            "now_s": self.now_s,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "node": self.node,
            "models": list(MODELS),
            "model": self.model,
            "bar_count": len(bars["gpu"]),
            "left_out": 0,
        }
        if len(bars["gpu"]) > int(query.get("max_bars") or 5_000):
            bucket_s = (to_s - from_s) / 200
            ratio = [
                [0.5 + 0.5 * math.sin(bucket / 9 + node) for bucket in range(200)] for node in range(len(self.nodes))
            ]
            return common | {
                "bars": None,
                "occupancy": {"bucket_s": bucket_s, "node": ratio},
                "left_out": len(bars["gpu"]),
            }
        return common | {"bars": bars, "occupancy": None}

    def load(self, span_s: float) -> dict[str, Any]:
        """Curves that come to the present figures of `head`."""
        times = [self.now_s - span_s * (1 - step / 120) for step in range(121)]
        early = self.head()["queue_by_reason"].get("begin_time", 0)  # they do not wait yet
        waiting, allocated = len(self.jobs) - self.running_count - early, self.running_count
        return {
            "asked_s": times[0],
            "from_s": times[0],
            "now_s": self.now_s,
            "exact": True,
            "waiting": {
                "time_s": times,
                "count": [*(waiting + round(30 * math.sin(step / 9)) for step in range(120)), waiting],
            },
            "allocated": {
                "time_s": times,
                "count": [*(allocated + round(6 * math.sin(step / 7)) for step in range(120)), allocated],
            },
        }

    def _policies(self) -> dict[str, Any]:
        listed = [
            {
                "name": "dqn",
                "description": "The learned policy: the network's values of pairs.",
                "advice": "For most clusters: the least mean completion time of jobs of one GPU.",
                "source": "ADLRO",
                "shipped": True,
                "acting": True,
                "shadow": False,
                "version": "770b",
                "problem": "",
            },
            {
                "name": "hold_greedy_fixed",
                "description": "The fastest GPU, or hold.",
                "advice": "A plain rule that is nearly as good, without a network.",
                "source": "ADLRO",
                "shipped": True,
                "acting": False,
                "shadow": True,
                "version": "",
                "problem": "",
            },
            {
                "name": "fcfs",
                "description": "First come, first served.",
                "advice": "Where the order of submission is all that counts.",
                "source": "ADLRO",
                "shipped": True,
                "acting": False,
                "shadow": False,
                "version": "",
                "problem": "",
            },
            {
                "name": "shortest",
                "description": "The shortest job on the first GPU.",
                "advice": "For a class on scheduling.",
                "source": "/home/ada/policies/mine.py:Shortest",
                "shipped": False,
                "acting": False,
                "shadow": False,
                "version": "5d41402abc4b",
                "problem": "",
            },
            {
                "name": "fair",
                "description": "Users in turn.",
                "advice": "",
                "source": f"package: fair (fairness 1.2 {HOSTILE})",
                "shipped": False,
                "acting": False,
                "shadow": False,
                "version": "",
                "problem": "its module can't be loaded",
            },
        ]
        return {
            "policies": listed,
            "deciding_policy": "hold_greedy_fixed",
            "deciding_basis": "out_of_range",
            "shadow": {"policy": "hold_greedy_fixed", "agreed": 870, "differed": 130, "failed": 0, "skipped": 4},
            "decisions_by_basis": {"policy": 880, "margin": 90, "out_of_range": 34},
            "fallbacks": {"out_of_range": 34},
            "paired_replay": None,
        }

    def _capacity(self, query: dict[str, str]) -> dict[str, Any]:
        models = [
            {
                "model": name,
                "gpu_count": self.model.count(index),
                "free_gpu_count": 4 * index,
                "memory_mib": 16_384 * (3 - index),
            }
            for index, name in enumerate(MODELS)
        ]
        fits = {"gpu_count": 8, "sentence": "8 GPUs fit now."} if query else None
        return {"models": models, "fits": fits}

    def _runs(self) -> dict[str, Any]:
        return {
            "runs": [
                {
                    "id": name,
                    "recipe": settings["recipe"],
                    "started_unix_s": 1_760_000_000 + 3_600 * index,
                    "row_count": 40,
                    "last": {"step": 400, "score": 0.5 + 0.1 * index},
                    "baseline": index == 0,
                }
                for index, (name, settings) in enumerate(RUNS.items())
            ]
        }

    def _run(self, run_id: str) -> dict[str, Any] | None:
        if run_id not in RUNS:
            return None
        number = list(RUNS).index(run_id)
        # The third scores at other steps than the others, and has not come as far.
        steps = list(range(5, 300, 15)) if number == 2 else list(range(0, 400, 10))
        columns = {
            "step": steps,
            "score": [0.8 + 0.1 * number - math.exp(-step / 90) for step in steps],
            "loss": [(1 + 0.1 * number) * math.exp(-step / 70) for step in steps],
        }
        return {"id": run_id, "columns": columns, "settings": RUNS[run_id]}
