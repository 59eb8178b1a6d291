"""Two machines under Ray, as far as one can have two: network namespaces. One is lost in the middle; nothing of the corpus is."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import neutral_core as nc

ROOT = Path(__file__).parents[2]
RUN = """
import sys
from pathlib import Path
from prep.pieces import Options
from prep.prepare import prepare
from prep.tokenizers import Settings
prepare(Options(inputs=(sys.argv[1],), destination=Path(sys.argv[2]), tokenizer=Settings(kind="byte", append_eos=True), documents="line",
                tokens_per_shard=4_000_000, task_bytes=60_000, engine=sys.argv[3]))
"""
# A lost machine is noticed within seconds instead of half a minute.
HEALTH = {"period_ms": "1000", "failure_threshold": "3", "timeout_ms": "1000", "initial_delay_ms": "1000"}
ENVIRONMENT = {
    **os.environ, **{f"RAY_health_check_{name}": value for name, value in HEALTH.items()},
    "RAY_USAGE_STATS_ENABLED": "0",
    # Newer versions ask for a token: the cluster of this test has one of its own.
    "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "PYTHONPATH": str(ROOT),
}  # fmt: skip
HOSTS = {"msA": "10.77.0.1", "msB": "10.77.0.2"}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[None]:
    if os.name != "posix" or os.geteuid() or shutil.which("ip") is None:
        pytest.skip("only root can make network namespaces, with iproute2")
    try:
        ip("link", "add", "msbr", "type", "bridge")
    except subprocess.CalledProcessError:
        pytest.skip("no bridge can be made here")
    try:
        ip("link", "set", "msbr", "up")
        for name, address in HOSTS.items():
            ip("netns", "add", name)
            ip("link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"v{name}", "master", "msbr", "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in HOSTS:
            lose(name)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        ip("link", "del", "msbr")


def lose(name: str) -> None:
    """Kill all processes of a host, as a power cut does."""
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout.split()
    for number in found:
        try:
            os.kill(int(number), 9)
        except ProcessLookupError:
            continue


def on(name: str, *command: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a command on a host; what is no ``ray start`` finds the cluster by RAY_ADDRESS, which Ray itself would stumble over."""
    address = {} if "start" in command else {"RAY_ADDRESS": f"{HOSTS['msA']}:6399"}
    with log.open("ab") as file:
        return subprocess.Popen(
            ["ip", "netns", "exec", name, *command], env=ENVIRONMENT | address, stdout=file, stderr=subprocess.STDOUT
        )


def until(happened: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def tree_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


@pytest.mark.slow
def test_a_machine_that_is_lost_in_the_middle_costs_no_document_and_no_minute(tmp_path: Path, hosts: None) -> None:
    pytest.importorskip("ray")
    source = tmp_path / "a.txt"
    source.write_text("".join(f"{number} {'abcdefgh' * (number % 13)}\n" for number in range(500_000)))
    subprocess.run([sys.executable, "-c", RUN, source, tmp_path / "alone", "local"], env=ENVIRONMENT, check=True)
    log = tmp_path / "log"
    started = []
    scratch = Path("/tmp/msray")  # Ray's sockets have short names
    shutil.rmtree(scratch, ignore_errors=True)
    ray = str(Path(sys.executable).with_name("ray"))
    common = ["--num-cpus=1", "--object-store-memory=100000000", "--block"]
    begin = time.monotonic()
    try:
        started.append(on("msA", ray, "start", "--head", f"--node-ip-address={HOSTS['msA']}", "--port=6399", "--include-dashboard=false",
           f"--temp-dir={scratch}/a", *common, log=log))  # fmt: skip
        alive = "import ray, sys; ray.init(log_to_driver=False); sys.exit(sum(n['Alive'] for n in ray.nodes()) < int(sys.argv[1]))"
        until(lambda: on("msA", sys.executable, "-c", alive, "1", log=log).wait() == 0, 30)
        started.append(
            on(
                "msB",
                ray,
                "start",
                f"--address={HOSTS['msA']}:6399",
                f"--node-ip-address={HOSTS['msB']}",
                *common,
                log=log,
            )
        )
        until(lambda: on("msA", sys.executable, "-c", alive, "2", log=log).wait() == 0, 30)
        run = on("msA", sys.executable, "-c", RUN, str(source), str(tmp_path / "out"), "ray", log=log)
        pieces = tmp_path / "out" / ".partial" / "pieces"
        until(lambda: run.poll() is not None or len(list(pieces.glob("*.json"))) > 60, 40)
        assert run.poll() is None
        lose("msB")
        run.wait(timeout=60)
        seconds = time.monotonic() - begin
    finally:
        for name in HOSTS:
            lose(name)
        for process in started:
            process.wait(timeout=30)
        shutil.rmtree(scratch, ignore_errors=True)
    assert run.returncode == 0, log.read_text()
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "alone")
    assert nc.open_corpus(tmp_path / "out").num_documents == 500_000
    print(f"\n{seconds:.1f} s from the start of the cluster")
    assert seconds < 60
