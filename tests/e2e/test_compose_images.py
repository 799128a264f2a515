"""The images: small, without root, pip or secrets, with packages that fit together, and able to run read-only."""

from __future__ import annotations

import pytest

from benchmarks import images as benchmark
from tests.e2e.compose_suite import ComposeSuite, engine

pytestmark = [pytest.mark.slow, pytest.mark.compose, pytest.mark.timeout(900)]  # the first one builds the images

TAG = "test"


@pytest.fixture(params=benchmark.SERVICES)
def image(request: pytest.FixtureRequest, images: float) -> str:
    return f"adlro-{request.param}:{TAG}"


def output(tag: str, *command: str) -> str:
    said: bytes = engine().containers.run(
        tag, list(command[1:]), entrypoint=[command[0]], network_mode="none", read_only=True, remove=True
    )
    return said.decode().strip()


def test_it_is_small_enough(image: str) -> None:
    name = image.partition(":")[0].removeprefix("adlro-")
    assert benchmark.size_mb(engine(), image) < benchmark.LIMITS_MB.get(name, 300)


def test_it_runs_as_a_number_that_is_not_root_and_can_write_nothing_of_its_own(image: str) -> None:
    assert output(image, "id", "-u") == "10001"
    written = "import os; print([d for d in ('/app', '/venv', '/usr', '/etc', '/root') if os.access(d, os.W_OK)])"
    assert output(image, "python", "-c", written) == "[]"


def test_it_holds_no_tools_to_build_or_install_with(image: str) -> None:
    tools = "import shutil; print([t for t in ('pip', 'pip3', 'gcc', 'cc', 'make', 'git', 'curl') if shutil.which(t)])"
    assert output(image, "python", "-c", tools) == "[]"
    packages = "import importlib.util as u; print([p for p in ('pip', 'setuptools', 'wheel') if u.find_spec(p)])"
    assert output(image, "python", "-c", packages) == "[]"


def test_it_holds_adlro_and_its_own_service_only(image: str) -> None:
    name = image.partition(":")[0].removeprefix("adlro-")
    files = output(image, "sh", "-c", "ls /app; ls /app/services 2>/dev/null || true").split()
    services = {"ingest", "decompose", "orchestrator", "simcluster", "web"} & set(files)
    assert services == ({name} if name in benchmark.LIMITS_MB else set())
    assert not {"tests", "benchmarks", "docs", "tools", ".git", "deploy"} & set(files)


def test_its_packages_fit_together(image: str) -> None:
    if "gateway" in image:
        pytest.skip("it has none")
    assert benchmark.pip_check(engine(), image) == "No broken requirements found."


def test_no_layer_holds_a_secret(image: str) -> None:
    assert benchmark.secrets_in(engine(), image) == []


def test_the_compiled_code_of_the_image_is_used(images: float) -> None:
    """Else each start would compile for a minute; numba takes the files for outdated on the least of reasons."""
    suite = ComposeSuite()
    for name, module in (("simcluster", "adlro.sim.warming"), ("orchestrator", "adlro.services.orchestrator.server")):
        files = "find $NUMBA_CACHE_DIR -type f | sort | xargs md5sum"
        script = (
            f"mkdir -p $NUMBA_CACHE_DIR && cp -R /app/compiled/. $NUMBA_CACHE_DIR && {files} > /tmp/before"
            f" && python -c 'from {module} import warm; warm()' && {files} | diff /tmp/before - && echo as before"
        )
        said = suite.run("run", "--rm", "--no-deps", "--entrypoint", "sh", name, "-c", script)
        assert said.stdout.strip().endswith("as before"), said.stdout
