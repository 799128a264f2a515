"""The blocking client is made from the one for asyncio: what is changed, what is refused, and that it is fresh."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.generate_blocking_client import CODE, SOURCE, TARGET, TEXT, blocking

ROOT = Path(__file__).resolve().parents[3]

KEYWORDS = {"async": "", "await": ""}

ASYNC = '''
import asyncio
import time

class AsyncThing:
    """A thing, for asyncio."""

    async def all(self) -> AsyncIterator[int]:
        async for each in self.of("await"):  # the async one
            yield await  each

    async def rest(self) -> None:
        async with (await self.lock()):
            await asyncio.sleep(min(self.AsyncThing, [await x async for x in self.all()][0]))
'''
BLOCKING = '''
import time

class Thing:
    """A thing."""

    def all(self) -> Iterator[int]:
        for each in self.of("wait"):  # the one
            yield each

    def rest(self) -> None:
        with (self.lock()):
            time.sleep(min(self.Thing, [x for x in self.all()][0]))
'''
CODE_RULES = KEYWORDS | {
    "import asyncio\n": "",
    "asyncio.sleep": "time.sleep",
    "AsyncThing": "Thing",
    "AsyncIterator": "Iterator",
}
TEXT_RULES = {", for asyncio.": ".", "the async one": "the one", '"await"': '"wait"'}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "tools/generate_blocking_client.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the tool reads."""
    for name in ("tools/generate_blocking_client.py", "pyproject.toml", str(SOURCE), str(TARGET)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_committed_client_is_fresh_and_one_line_says_so() -> None:
    ended = run(ROOT, "--check")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert ended.stdout == "adlro/client/blocking.py is up to date\n"


def test_it_says_that_it_is_generated_and_from_what() -> None:
    head = (ROOT / TARGET).read_text().partition("\nfrom ")[0]
    assert "Generated from adlro/client/aio.py by `make client`. Don't edit." in head


def test_nothing_of_asyncio_is_left() -> None:
    body = (ROOT / TARGET).read_text().partition("from __future__")[2]
    assert not re.search("async|await|grpc.aio", body, re.IGNORECASE)


def test_what_was_changed_or_edited_is_stale_until_it_is_made_again(checkout: Path) -> None:
    source, target = checkout / SOURCE, checkout / TARGET
    source.write_text(source.read_text().replace("async def undrain(", "async def let_jobs_start_again_on("))
    before = target.read_text()
    ended = run(checkout, "--check")
    assert ended.returncode == 1
    assert "run `make client`" in ended.stderr
    assert target.read_text() == before
    assert run(checkout).returncode == 0
    assert "    def let_jobs_start_again_on(self, node_id: str) -> None:\n" in target.read_text()
    assert run(checkout, "--check").returncode == 0
    target.write_text(target.read_text() + "\n# by hand\n")
    assert run(checkout, "--check").returncode == 1


def test_asyncio_that_no_rule_knows_is_refused_and_nothing_is_written(checkout: Path) -> None:
    source, target = checkout / SOURCE, checkout / TARGET
    source.write_text(source.read_text() + "\n\nasync def both() -> None:\n    await asyncio.gather()\n")
    before = target.read_text()
    ended = run(checkout)
    assert ended.returncode == 1
    assert "adlro/client/aio.py: no rule says what becomes of: asyncio.gather()" in ended.stderr
    assert "tools/generate_blocking_client.py" in ended.stderr
    assert target.read_text() == before


def test_code_strings_and_comments_are_changed_by_the_rules() -> None:
    assert blocking(ASYNC, CODE_RULES, TEXT_RULES) == BLOCKING


def test_rules_for_code_change_no_text_and_the_reverse() -> None:
    assert blocking('x = thing("thing")  # thing\n', {"thing": "other"}, {}) == 'x = other("thing")  # thing\n'
    assert blocking('x = thing("thing")  # thing\n', {}, {"thing": "other"}) == 'x = thing("other")  # other\n'
    assert blocking("things = thing.thing2\n", {"thing": "other"}, {}) == "things = other.thing2\n"


def test_the_longest_rule_that_fits_is_taken() -> None:
    rules = {"open": "a", "open(path, mode)": "b(path)", "open(path)": "c(path)"}
    assert blocking("open(path,mode); open(path); open()\n", rules, {}) == "b(path); c(path); a()\n"


@pytest.mark.parametrize(
    "left", ["asyncio.gather()", "x: grpc.aio.Channel", "await_it()", '"""Await it."""', "# async", "next = anext"]
)
def test_what_is_left_of_asyncio_is_named(left: str) -> None:
    with pytest.raises(ValueError, match="no rule says") as caught:
        blocking(f"await this\n{left}\n", {"await": ""}, {})
    assert left in str(caught.value)


def test_a_rule_that_changes_nothing_is_named() -> None:
    with pytest.raises(ValueError, match="rules that change nothing: 'AsyncThing', 'for asyncio'"):
        blocking("await this\n", {"await": "", "AsyncThing": "Thing"}, {"for asyncio": ""})


def test_no_rule_brings_asyncio_in() -> None:
    assert not re.search("async|await|aio", "".join([*CODE.values(), *TEXT.values()]), re.IGNORECASE)
