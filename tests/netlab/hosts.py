"""Emulates several hosts on one Linux machine, for tests and measurements: `with Hosts(2) as hosts: hosts.run("h1", ["hostname"])`.

Hosts h0, h1, … are connected to one switch. Their addresses are 10.77.0.1, 10.77.0.2, …, and they know each other by
name. Each host has its own network, processes, host name, /tmp and /dev/shm. Its disk is /mnt/disk. It has the host's
home folder, and keeps its files when the host loses power. The hosts see all other files of the machine read-only.
`shared` names folders to which all hosts may write. `readonly` names folders that would otherwise be hidden, such as a
checkout under /tmp.

Each link has a rate per direction (`rate`). It can be cut and restored. A host can lose power and start again. Delay
and packet loss are not emulated. `bytes` counts bytes at the ports of the switch. A large segment passes the switch as
one packet, so most TCP/IP headers (4 %) are not counted.

It needs root, iproute2 and util-linux, and does not change the machine's own network. If this machine cannot emulate
hosts, `why_not()` returns the reason.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DISK = "/mnt/disk"
HIDDEN = ("/tmp", "/var/tmp", "/run", "/dev/shm")
NOT_FILES = ("/proc", "/sys", "/dev", "/mnt")
ENTER = 'cd "$1" 2> /dev/null || cd /; shift; exec "$@"'
TOOLS = ("ip", "tc", "unshare", "nsenter", "setsid", "setpriv", "mount")
BOOT_S = 30.0


def call(*command: str, check: bool = True) -> str:
    """Runs a command and returns its output. If it fails, raises RuntimeError with its message."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout


def end_on_signals() -> None:
    """Makes SIGTERM and SIGINT end this program by sys.exit, so that its hosts end too."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda number, _: sys.exit(128 + number))


def why_not() -> str | None:
    """Returns the reason why this machine cannot emulate hosts, or None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "emulated hosts need root on Linux: namespaces, links and mounts"
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"emulated hosts need {' and '.join(missing)}: install iproute2 and util-linux"
    try:
        call("unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "probe0", "type", "bridge")
    except RuntimeError as error:
        return f"namespaces are not allowed here: {error}"
    return None


class Hosts:
    """The emulated hosts. They exist inside the `with` block and are removed completely at its end."""

    def __init__(
        self,
        count: int,
        *,
        rate: str | None = None,
        shared: Sequence[Path] = (),
        readonly: Sequence[Path] = (),
        disk_bytes: int | None = None,
    ) -> None:
        """`rate`: rate of each link, such as 100mbit; None: no limit. `disk_bytes`: size of each host's disk, which is in memory."""
        self.names = [f"h{k}" for k in range(count)]
        self._prefix = f"gm{os.getpid()}x{time.monotonic_ns() % 10**6}"
        self._switch, self._disk_bytes = f"{self._prefix}-switch", disk_bytes
        self._folder = Path(tempfile.mkdtemp(prefix="hosts-", dir="/var/tmp"))
        self._files = {
            "shared": [str(path.resolve()) for path in shared],
            "readonly": [str(path.resolve()) for path in readonly],
        }
        self._rates = dict.fromkeys(self.names, rate)
        self._counted_before = {name: (0, 0) for name in self.names}  # bytes of links that no longer exist
        self._on: set[str] = set()

    def __enter__(self) -> "Hosts":
        try:
            names = ["127.0.0.1 localhost", *(f"{self.address(name)} {name}" for name in self.names)]
            (self._folder / "names").write_text("\n".join(names) + "\n")
            call("ip", "netns", "add", self._switch)
            call("ip", "-n", self._switch, "link", "add", "switch", "type", "bridge")
            call("ip", "-n", self._switch, "link", "set", "switch", "addrgenmode", "none", "up")
            for name in self.names:
                self.disk(name).joinpath("home").mkdir(parents=True)
                if self._disk_bytes is not None:
                    call("mount", "-t", "tmpfs", "-o", f"size={self._disk_bytes}", "tmpfs", str(self.disk(name)))
                    self.disk(name).joinpath("home").mkdir()
                self.power_on(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            self._end(name)
            if self._disk_bytes is not None:
                call("umount", str(self.disk(name)), check=False)
        call("ip", "netns", "delete", self._switch, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def disk(self, host: str) -> Path:
        """The path of a host's disk, as seen from the machine."""
        return self._folder / host

    @staticmethod
    def address(host: str) -> str:
        return f"10.77.0.{int(host[1:]) + 1}"

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """The command line that runs a command on a host. The command runs in the current folder, or in / if the host does not have this folder."""
        enter = ["nsenter", f"--target={self._first_pid(host)}", "--mount", "--uts", "--ipc", "--net", "--pid"]
        enter += ["setpriv", "--pdeathsig", "TERM", "env", f"HOME={DISK}/home", f"HOSTNAME={host}"]
        return [*enter, "sh", "-c", ENTER, "sh", os.getcwd(), *command]

    def run(self, host: str, command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[Any]":
        """Like subprocess.run, but on a host."""
        return subprocess.run(self.command(host, command), start_new_session=True, **options)

    def popen(self, host: str, command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """Like subprocess.Popen, but on a host. The returned process waits for the command. If the process is killed, the command gets SIGTERM."""
        return subprocess.Popen(self.command(host, command), start_new_session=True, **options)

    def power_on(self, host: str) -> None:
        """Starts a host. Its disk has the same files as before, /tmp and /dev/shm are empty, and its link works at its rate."""
        net = f"{self._prefix}-{host}"
        inside, outside = ("ip", "-n", net), ("ip", "-n", self._switch)
        call("ip", "netns", "add", net)
        call(*inside, "link", "add", "eth0", "type", "veth", "peer", "name", host, "netns", self._switch)
        call(*outside, "link", "set", host, "addrgenmode", "none", "master", "switch", "up")
        call(*inside, "link", "set", "eth0", "addrgenmode", "none", "up")
        call(*inside, "link", "set", "lo", "up")
        call(*inside, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        call(*inside, "route", "add", "default", "dev", "eth0")  # programs use it to find their own address
        self.rate(host, self._rates[host])
        settings = json.dumps({"host": host, "folder": str(self._folder), **self._files})
        space = [f"--net=/run/netns/{net}", "unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc"]
        first = [sys.executable, "-I", str(Path(__file__).resolve()), settings]
        log = self._folder / f"{host}.boot"
        with log.open("w") as output:
            subprocess.run(
                ["setsid", "--fork", "nsenter", *space, *first],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                check=True,
            )
        deadline = time.monotonic() + BOOT_S
        while "ready" not in log.read_text().splitlines():
            if time.monotonic() > deadline or "Error" in log.read_text():
                raise RuntimeError(f"{host} does not start: {log.read_text().strip() or f'nothing after {BOOT_S:g} s'}")
            time.sleep(0.02)
        self._on.add(host)

    def power_off(self, host: str) -> None:
        """Kills all processes of a host. Its peers get no message."""
        now, before = self._counted()[host], self._counted_before[host]
        self._end(host)
        self._counted_before[host] = (before[0] + now[0], before[1] + now[1])
        self._on.discard(host)

    def cut(self, host: str) -> None:
        """Cuts the link of a host. Sent data are lost; connections stay open and wait."""
        call("ip", "-n", self._switch, "link", "set", host, "down")

    def heal(self, host: str) -> None:
        call("ip", "-n", self._switch, "link", "set", host, "up")

    def rate(self, host: str, rate: str | None) -> None:
        """Sets the rate of a host's link, for both directions. It also holds after the host starts again."""
        self._rates[host] = rate
        for net, device in ((f"{self._prefix}-{host}", "eth0"), (self._switch, host)):
            call("tc", "-n", net, "qdisc", "delete", "dev", device, "root", check=False)
            if rate is not None:
                bucket = (
                    ("burst", "64kb", "latency", "50ms")
                    if "gbit" not in rate
                    else ("burst", "512kb", "latency", "50ms")
                )
                call("tc", "-n", net, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, *bucket)

    def bytes(self) -> dict[str, tuple[int, int]]:
        """For each host, the (sent, received) bytes on its link since the start of the hosts."""
        counted = self._counted()
        return {
            name: (sent + counted.get(name, (0, 0))[0], received + counted.get(name, (0, 0))[1])
            for name, (sent, received) in self._counted_before.items()
        }

    def _counted(self) -> dict[str, tuple[int, int]]:
        links = json.loads(call("ip", "-n", self._switch, "-j", "-s", "link", "show"))
        counts = {each["ifname"]: each["stats64"] for each in links if "stats64" in each}
        return {name: (each["rx"]["bytes"], each["tx"]["bytes"]) for name, each in counts.items()}

    def pids(self, host: str) -> list[int]:
        """The ids of a host's processes, as numbered by the machine."""
        listed = [int(pid) for pid in call("ip", "netns", "pids", f"{self._prefix}-{host}", check=False).split()]
        return [pid for pid in listed if len(_namespace_pids(pid)) > len(_namespace_pids(os.getpid()))]

    def _first_pid(self, host: str) -> int:
        """The machine's id for the host's process 1. The host's namespaces are the namespaces of this process."""
        for pid in self.pids(host):
            if _namespace_pids(pid)[-1:] == [1]:
                return pid
        raise RuntimeError(f"{host} is not on")

    def _end(self, host: str) -> None:
        """Removes the link, then the processes, then the network. The link is first, so that no peer gets a message."""
        call("ip", "-n", self._switch, "link", "delete", host, check=False)
        deadline, pids = time.monotonic() + BOOT_S, set[int]()
        while pids := {pid for pid in pids.union(self.pids(host)) if _namespace_pids(pid)}:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{host}: processes {pids} do not end")
            time.sleep(0.02)
        call("ip", "netns", "delete", f"{self._prefix}-{host}", check=False)


def _namespace_pids(pid: int) -> list[int]:
    """The ids of a process in each pid namespace, from the machine's to its own. Empty if the process no longer exists."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return [int(each) for each in status.partition("\nNSpid:")[2].partition("\n")[0].split()]
    return []


def first_process(host: str, folder: Path, shared: Sequence[str], readonly: Sequence[str]) -> None:
    """What process 1 of a host does: mounts the host's files, reports that it is ready, and then reaps orphaned processes."""
    staged: list[tuple[str, str]] = []

    def stage(source: str, target: str, is_readonly: bool = False) -> None:
        """Makes a folder available at a temporary place, because a later mount will hide it. At the end it is moved to its final place."""
        place = Path(f"/mnt/.{len(staged)}")
        place.mkdir() if Path(source).is_dir() else place.touch()
        call("mount", "--rbind", source, str(place))
        if is_readonly:
            call("mount", "-o", "remount,bind,ro", str(place))
        staged.append((str(place), target))

    call("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/mnt")
    stage(str(folder / host), DISK)
    stage(str(folder / "names"), "/etc/hosts", is_readonly=True)
    for each in (*readonly, *shared):
        stage(each, each, is_readonly=each in readonly)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        target = line.split()[4].encode().decode("unicode_escape")
        if not any(target == each or target.startswith(f"{each}/") for each in NOT_FILES):
            call("mount", "-o", "remount,bind,ro", target, check=False)
    for target in HIDDEN:
        if Path(target).is_dir():
            call("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", target)
    for place, target in sorted(staged, key=lambda each: each[1]):
        if Path(place).is_dir():
            Path(target).mkdir(parents=True, exist_ok=True)
        call("mount", "--move", place, target)
    call("hostname", host)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    print("ready", flush=True)
    while signal.sigwait({signal.SIGCHLD}):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    first_process(settings["host"], Path(settings["folder"]), settings["shared"], settings["readonly"])
