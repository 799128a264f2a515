from __future__ import annotations

import json
import logging

import pytest
import structlog

from adlro.kit.log import configure, get_logger


@pytest.fixture(autouse=True)
def _undo():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    return [json.loads(line) for line in err.splitlines()]


def test_a_line_is_one_json_object_with_the_calls_ids(capsys):
    configure("ingest", "info")
    structlog.contextvars.bind_contextvars(job_id="job-1", request_id="r-1")
    get_logger().info("job recorded", revision=3, odd=object)
    (line,) = lines(capsys)
    assert list(line)[:4] == ["time", "level", "service", "event"]
    assert (line["event"], line["level"], line["service"]) == ("job recorded", "info", "ingest")
    assert (line["job_id"], line["request_id"], line["revision"]) == ("job-1", "r-1", 3)


def test_lines_below_the_level_are_left_out(capsys):
    configure("ingest", "warning")
    get_logger().info("left out")
    get_logger().warning("kept")
    assert [line["event"] for line in lines(capsys)] == ["kept"]


def test_the_standard_librarys_log_looks_the_same(capsys):
    configure("ingest", "info")
    try:
        raise KeyError("a bug")
    except KeyError:
        logging.getLogger("asyncio").exception("Task exception was never %s", "retrieved")
    (line,) = lines(capsys)
    assert line["event"] == "Task exception was never retrieved"
    assert line["logger"] == "asyncio"
    assert "KeyError: 'a bug'" in line["exception"]


def test_several_lines_of_text_stay_one_line_of_log(capsys):
    configure("ingest", "info")
    get_logger().info("first\nsecond")
    assert [line["event"] for line in lines(capsys)] == ["first\nsecond"]


def test_a_reader_that_went_away_takes_nothing_with_it(monkeypatch):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

    configure("ingest", "info")
    monkeypatch.setattr("sys.stderr", Gone())
    get_logger().info("nobody reads this")
    logging.getLogger("asyncio").warning("nor this")


def test_text_of_a_broken_connection_that_grpc_can_not_decode_is_no_error(capsys):
    configure("ingest", "info")
    try:
        raise ValueError
    except ValueError:
        logging.getLogger("grpc._cython.cygrpc").exception("Invalid encoding on %s", b"\x88")
    logging.getLogger("grpc._cython.cygrpc").error("something else")
    undecodable, other = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (undecodable["level"], "exception" in undecodable) == ("info", False)
    assert "Invalid encoding on" in undecodable["event"]
    assert other["level"] == "error"
