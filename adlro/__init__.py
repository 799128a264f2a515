"""ADLRO: places jobs on the GPUs of a mixed cluster. What the services share; imports no service.

    import adlro

    with adlro.connect() as client:
        job = client.submit(command=["python", "train.py"], gpus=2, time_limit="1h")
        print(client.jobs(user="ada"))

    future = adlro.submit(train, 0.1, options={"gpus": 1})
    print(future.result())

The names below are looked up in `adlro.client` and `adlro.errors` at their first use: `import adlro` loads neither.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing's, without loading typing
if TYPE_CHECKING:
    from adlro.client import AsyncClient, Client, JobFilter, JobSpec, JobState, JobType, connect
    from adlro.client.executor import Executor, submit
    from adlro.client.functions.futures import AsyncFuture, Future
    from adlro.client.functions.outcomes import JobFailed
    from adlro.errors import AdlroError

__all__ = [
    "AdlroError",
    "AsyncClient",
    "AsyncFuture",
    "Client",
    "Executor",
    "Future",
    "JobFailed",
    "JobFilter",
    "JobSpec",
    "JobState",
    "JobType",
    "connect",
    "submit",
]

_MODULES = {
    "AdlroError": "adlro.errors",
    "AsyncFuture": "adlro.client.functions.futures",
    "Executor": "adlro.client.executor",
    "Future": "adlro.client.functions.futures",
    "JobFailed": "adlro.client.functions.outcomes",
    "submit": "adlro.client.executor",
}


if not TYPE_CHECKING:  # for type checkers, a name that is not listed is a mistake

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'adlro' has no attribute {name!r}")
        from importlib import import_module

        value: object = getattr(import_module(_MODULES.get(name, "adlro.client")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
