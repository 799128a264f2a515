"""docs/grpc.md: its examples, run as they stand there; with buf curl, Node.js, and Go where Go is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adlro.client import Client, JobFilter
from adlro.kit.testing import ROOT
from tests.e2e.running_suite import RunningSuite, environment

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "grpc.md").read_text()
ADDRESS = "127.0.0.1:7701"
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
# What each example says of its job, and of one with a wrong priority.
SAID = (
    r"job-\d+\n(JOB_STATE_PENDING\n)?JOB_STATE_RUNNING\nJOB_STATE_SUCCEEDED\n"
    r"(INVALID_ARGUMENT|InvalidArgument) job\.priority: must be .+ \(got 1\.5\)\n"
)
# Where Debian has the libraries of its packages for Go.
GO_LIBRARIES = Path("/usr/share/gocode")


def lines(heading: str) -> str:
    """The commands of a section."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (found,) = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(found)


def shell(text: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs lines of a shell, each of which must succeed."""
    return subprocess.run(
        ["sh", "-ec", text],
        cwd=folder,
        env=environment(PATH=PATH, **more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.skipif(shutil.which("buf", path=PATH) is None, reason="buf is not installed; the extra `dev` has it")
def test_with_buf_curl(scaled_suite: RunningSuite, tmp_path: Path) -> None:
    listing, submitting, *reading = re.split(r"(?<!\\)\n", lines("With buf curl").rstrip())
    assert len(reading) == 2
    listed = shell(listing.replace(ADDRESS, scaled_suite.server), tmp_path)
    assert "adlro.v1.JobService" in listed.stdout.split(), listed.stderr
    submitted = shell(submitting.replace(ADDRESS, scaled_suite.server), tmp_path)
    assert submitted.returncode == 0, submitted.stderr
    job_id = json.loads(submitted.stdout)["job"]["jobId"]
    page, job = (
        shell(each.replace(ADDRESS, scaled_suite.server).replace("job-1", job_id), tmp_path) for each in reading
    )
    assert job_id in [each["jobId"] for each in json.loads(page.stdout)["jobs"]], page.stderr
    assert json.loads(job.stdout)["job"]["spec"]["name"] == "from buf", job.stderr


@pytest.mark.browser  # for Node.js and its packages, which `make test-browser` installs
def test_with_javascript(scaled_suite: RunningSuite) -> None:
    installing, running = lines("With JavaScript").splitlines()
    pinned = json.loads((ROOT / "package.json").read_text())["devDependencies"]
    assert installing.split()[:2] == ["npm", "install"]
    assert set(installing.split()[2:]) <= set(pinned)
    ended = shell(running.replace(ADDRESS, scaled_suite.server), ROOT, USER="ada")
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(SAID, ended.stdout), ended.stdout
    with Client(scaled_suite.server) as client:
        assert "from JavaScript" in [job.spec.name for job in client.list(JobFilter(user="ada"))]


def test_with_go(scaled_suite: RunningSuite, tmp_path: Path) -> None:
    missing = [name for name in ("go", "protoc-gen-go", "protoc-gen-go-grpc") if shutil.which(name) is None]
    if missing or shutil.which("buf", path=PATH) is None:
        pytest.skip(f"needs {', '.join(missing) or 'buf'} on PATH")
    entering, generating, *making, running = lines("With Go").splitlines()
    assert entering == "cd examples/grpc/go"
    # The contracts are the workspace's, three folders up; what is generated is put elsewhere.
    folder = tmp_path / "src" / "example.org" / "adlro-client"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "grpc" / "go" / "main.go", folder)
    generated = shell(f"{generating} -o {folder}", ROOT / "examples" / "grpc" / "go")
    assert generated.returncode == 0, generated.stderr

    # Modules that are on this machine, as the page does it; else the libraries of the system's packages.
    made = shell("\n".join(making), folder, GOPROXY="off", GOFLAGS="-mod=mod", GOTOOLCHAIN="local")
    more = {"GOPROXY": "off", "GOTOOLCHAIN": "local"}
    if made.returncode != 0:
        if not (GO_LIBRARIES / "src" / "google.golang.org" / "grpc").is_dir():
            pytest.skip(f"Go's libraries of gRPC are not on this machine: {made.stderr.splitlines()[-1]}")
        (folder / "go.mod").unlink(missing_ok=True)
        more |= {"GO111MODULE": "off", "GOPATH": f"{tmp_path}:{GO_LIBRARIES}"}
    ended = shell(running.replace(ADDRESS, scaled_suite.server), folder, USER="ada", **more)
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(SAID, ended.stdout), ended.stdout


def test_the_page_names_every_call_with_its_service_and_port() -> None:
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\([^)]+\) \| .*? \| (.+) \|$", PAGE, re.MULTILINE))
    told = {service: re.findall(r"`(\w+)`", calls) for service, calls in rows.items()}
    contracts = "".join(path.read_text() for path in sorted((ROOT / "protos").rglob("*_service.proto")))
    expected = {
        found[1]: re.findall(r"^  rpc (\w+)", found[2], re.MULTILINE)
        for found in re.finditer(r"^service (\w+) \{\n(.*?)^\}", contracts, re.MULTILINE | re.DOTALL)
    }
    assert told == expected
