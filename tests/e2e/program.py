"""What jobs of the tests run: `python -I -S program.py KIND [ARGUMENT]...`. Standard library alone.

The output of most kinds is a pattern of which every byte is known by its offset, so that any piece of a log can be
checked.
"""

from __future__ import annotations

import os
import signal
import sys
import time

BLOCK_BYTES = 64 << 10
_LINE_BYTES = 16
_REST = b"".join(b"%015d\n" % number for number in range(1, BLOCK_BYTES // _LINE_BYTES))

# What a terminal would obey: colour, title, clipboard, cursor, alternate screen, C1 controls; and what is no UTF-8.
HOSTILE = (
    b"\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]52;c;cHduZWQ=\x07 \x1b[2J\x1b[H \x1b[?1049h \x1bc\n"
    b"\xc2\x9b31m \x9b31m \xff\xfe\xc3( nul \x00 back\x08\x08\x08 bell \x07 \xe2\x80\xae overridden\n"
    b"return\rturned; no end of line \x1b"
)


def pattern(seed: int, begin: int, length: int) -> bytes:
    """A piece of the pattern.

    Args:
        seed: tells streams apart.
        begin: offset of its first byte.
        length: of the piece, bytes.
    """
    first, last = begin // BLOCK_BYTES, (begin + length) // BLOCK_BYTES
    blocks = b"".join(b"%015d\n" % (seed + block) + _REST for block in range(first, last + 1))
    return blocks[begin - first * BLOCK_BYTES :][:length]


def write(fd: int, data: bytes) -> None:
    """All of it."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def write_pattern(fd: int, seed: int, length: int) -> None:
    """The pattern's first bytes."""
    for begin in range(0, length, BLOCK_BYTES):
        write(fd, pattern(seed, begin, min(BLOCK_BYTES, length - begin)))


def end(code: str, size: str = "0") -> None:
    """Writes `size` bytes of the pattern and ends with a code."""
    write_pattern(1, 0, int(size))
    sys.exit(int(code))


def both(size: str) -> None:
    """Writes the pattern to both streams by turns, in small pieces."""
    for begin in range(0, int(size), 1000):
        length = min(1000, int(size) - begin)
        write(1, pattern(1, begin, length))
        write(2, pattern(2, begin, length))


def flood(mib: str) -> None:
    """Writes the pattern as quickly as it can."""
    write_pattern(1, 0, int(mib) << 20)


def die(number: str) -> None:
    """Ends by a signal."""
    write(1, b"about to die\n")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.kill(os.getpid(), int(number))
    time.sleep(60.0)


def _deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _sleep() -> None:
    while True:
        time.sleep(0.2)


def forever(kind: str = "") -> None:
    """Runs until it is killed; `deaf`: SIGTERM does not do that."""
    if kind == "deaf":
        _deaf()
    write(1, b"running\n")
    _sleep()


def stopped() -> None:
    """Stops itself, as Ctrl-Z does, and is never continued."""
    write(1, b"running\n")
    os.kill(os.getpid(), signal.SIGSTOP)


def daemon(pid_file: str, kind: str = "") -> None:
    """Leaves a daemon behind that ignores SIGTERM, in a session of its own; `bare`: without any environment."""
    if os.fork():
        while not os.path.exists(pid_file):
            time.sleep(0.01)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    _deaf()
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    with open(f"{pid_file}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{pid_file}.new", pid_file)
    if kind == "bare":
        os.execve("/bin/sleep", ["sleep", "600"], {})
    _sleep()


def workers(count: str) -> None:
    """Starts workers in sessions of their own, as torchrun does, that ignore SIGTERM; waits for them."""
    for _ in range(int(count)):
        if not os.fork():
            os.setsid()
            _deaf()
            _sleep()
    write(1, b"running\n")
    os.wait()


def eat(mib: str) -> None:
    """Takes memory, and says how much at last."""
    kept = []
    for _ in range(int(mib) >> 4):
        kept.append(bytearray(b"x") * (16 << 20))
    write(1, b"%d MiB\n" % (len(kept) << 4))


def hostile() -> None:
    """Writes what a terminal would obey, to both streams."""
    write(1, HOSTILE)
    write(2, HOSTILE)


def environment(*names: str) -> None:
    """Writes variables of its environment."""
    for name in names:
        write(1, os.fsencode(f"{name}={os.environ.get(name, '(not set)')}\n"))


def tick(starts: str, count: str, code: str) -> None:
    """Notes its start in a file, writes a line every 50 ms, and ends with a code."""
    with open(starts, "ab", buffering=0) as file:
        file.write(f"{os.environ['ADLRO_JOB_ID']} {os.environ['ADLRO_ATTEMPT']}\n".encode())
    for number in range(int(count)):
        write(1, b"tick %d\n" % number)
        time.sleep(0.05)
    sys.exit(int(code))


def no_workdir() -> None:
    """Removes its own working directory."""
    import shutil

    shutil.rmtree(os.getcwd())
    write(1, b"gone\n")


def train(steps: str) -> None:
    """Fits a small model, by torch where that is there; ends with 1 unless it has learned."""
    try:
        import torch
    except ImportError:
        _train_by_numpy(int(steps))
        return
    torch.manual_seed(1)
    torch.set_num_threads(1)
    x = torch.randn(512, 16)
    y = torch.sin(x.sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(int(steps)):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    _report(losses)


def _train_by_numpy(steps: int) -> None:
    import numpy as np

    rng = np.random.default_rng(1)
    x = rng.standard_normal((512, 16))
    y = np.tanh(x @ rng.standard_normal(16))
    weights, losses = np.zeros(16), []
    for _ in range(steps):
        error = np.tanh(x @ weights) - y
        losses.append(float(np.mean(error**2)))
        weights -= 0.1 * x.T @ (error * (1.0 - np.tanh(x @ weights) ** 2)) / len(x)
    _report(losses)


def _report(losses: list[float]) -> None:
    learned = losses[-1] < 0.5 * losses[0]
    write(1, b"learned\n" if learned else b"not learned\n")
    write(2, "".join(f"loss {loss:.4f}\n" for loss in losses).encode())
    sys.exit(0 if learned else 1)


KINDS = (end, both, flood, die, forever, stopped, daemon, workers, eat, hostile, environment, tick, no_workdir, train)

if __name__ == "__main__":
    {kind.__name__: kind for kind in KINDS}[sys.argv[1]](*sys.argv[2:])
