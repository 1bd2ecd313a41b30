//! Hosts of brokers: for each seat a network namespace on a bridge, with its own clock and disk.
//!
//! Names contain the id of this process, so that the next run can find and remove the leftovers of a killed one.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::process::Command;
use tokio::sync::{Mutex, MutexGuard};

use super::disk::{self, Disk};
use super::shell::{run, run_cleanup};
use crate::process::place::{Launcher, Place};

/// Numbers of the hosts. One member runs on each at a time; a founding member has the number of its seat.
pub(super) const SEATS: RangeInclusive<u64> = 1..=3;
/// Prefixes of the names of namespaces and bridges.
const NAMESPACE_PREFIX: &str = "comity-chaos-";
const BRIDGE_PREFIX: &str = "cchaos";
/// Folders in which libfaketime may be installed.
const FAKETIME: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"];
const PROGRAMS: [&str; 8] = ["ip", "nft", "cc", "mkfs.ext4", "mount", "umount", "fallocate", "cp"];

/// Missing requirements of this machine for brokers in namespaces with their own clocks and disks.
#[must_use]
pub fn missing() -> Vec<String> {
    let mut missing = Vec::new();
    if !cfg!(target_os = "linux") || run("id", &["-u"]).is_ok_and(|id| id.trim() != "0") {
        missing.push("root on Linux (network namespaces and mounts)".to_owned());
    }
    for program in PROGRAMS {
        if run("which", &[program]).is_err() {
            missing.push(format!("the program {program}"));
        }
    }
    if faketime().is_none() {
        missing.push("libfaketime (scripts/system-packages installs it)".to_owned());
    }
    missing
}

fn faketime() -> Option<PathBuf> {
    FAKETIME.iter().map(|dir| Path::new(dir).join("faketime/libfaketimeMT.so.1")).find(|path| path.exists())
}

/// Held by the current hosts: names are unique by process only, so there is one set at a time.
static TURN: Mutex<()> = Mutex::const_new(());

/// All hosts. Dropping them removes namespaces and disks; processes there must have ended.
pub(super) struct Hosts {
    _dir: tempfile::TempDir,
    bridge: String,
    hosts: Vec<Host>,
    _turn: MutexGuard<'static, ()>,
}

struct Host {
    namespace: String,
    address: String,
    clock: PathBuf,
    disk: Disk,
    place: Place,
}

impl Hosts {
    /// Creates the hosts, after any earlier ones of this process are gone.
    ///
    /// # Errors
    /// When a host cannot be set up.
    pub(super) async fn make() -> Result<Self> {
        let turn = TURN.lock().await;
        sweep();
        let dir = tempfile::Builder::new().prefix("comity-hosts-").tempdir()?;
        let (layer, pid) = (disk::compile(dir.path())?, std::process::id());
        let (bridge, net) = (format!("{BRIDGE_PREFIX}{pid}"), format!("10.{}.{}", 100 + pid / 250 % 100, pid % 250));
        let mut made = Self { _dir: dir, bridge, hosts: Vec::new(), _turn: turn };
        let bridge = made.bridge.as_str();
        run("ip", &["link", "add", bridge, "type", "bridge"])?;
        run("ip", &["address", "add", &format!("{net}.254/24"), "dev", bridge])?;
        run("ip", &["link", "set", bridge, "up"])?;
        for seat in SEATS {
            let host = Host::make(made._dir.path(), &layer, seat, &net)?;
            made.hosts.push(host);
            made.hosts.last().context("a host was made")?.connect(&made.bridge, seat)?;
        }
        Ok(made)
    }

    /// Where the broker of each seat runs.
    pub(super) fn places(&self) -> Vec<Place> {
        self.hosts.iter().map(|host| host.place.clone()).collect()
    }

    /// Where the broker of a seat runs.
    pub(super) fn place(&self, seat: u64) -> Result<Place> {
        Ok(self.host(seat)?.place.clone())
    }

    fn host(&self, seat: u64) -> Result<&Host> {
        self.hosts.get(usize::try_from(seat)? - 1).context("seats are 1 to 3")
    }

    /// The disk of a seat.
    pub(super) fn disk(&self, seat: u64) -> Result<&Disk> {
        Ok(&self.host(seat)?.disk)
    }

    /// Mounts the disk of a seat beside a data directory and moves the directory to it; returns the new path.
    pub(super) fn mount(&mut self, seat: u64, data: &Path) -> Result<PathBuf> {
        let host = self.hosts.get_mut(usize::try_from(seat)? - 1).context("seats are 1 to 3")?;
        host.disk.mount(&data.with_file_name(format!("disk-{seat}")), data)
    }

    /// Offsets the clock of a seat by `off_s` seconds.
    pub(super) fn set_clock(&self, seat: u64, off_s: i64) -> Result<()> {
        let clock = &self.host(seat)?.clock;
        let new = clock.with_extension("new");
        fs::write(&new, format!("{off_s:+}\n"))?;
        Ok(fs::rename(new, clock)?)
    }

    /// Drops all packets from seat `from` to seat `to`.
    pub(super) fn cut(&self, from: u64, to: u64) -> Result<()> {
        let (from, to) = (self.host(from)?, self.host(to)?);
        let rule = ["add", "rule", "inet", "chaos", "input", "ip", "saddr", &from.address, "drop"];
        to.nft(&rule)
    }

    /// Isolates a seat from the others in both directions. Clients still reach it.
    pub(super) fn isolate(&self, seat: u64) -> Result<()> {
        SEATS.filter(|other| *other != seat).try_for_each(|other| {
            self.cut(seat, other)?;
            self.cut(other, seat)
        })
    }

    /// Restores all connections.
    pub(super) fn join(&self) -> Result<()> {
        self.hosts.iter().try_for_each(|host| host.nft(&["flush", "chain", "inet", "chaos", "input"]))
    }

    /// Unmounts all disks even if they are in use.
    pub(super) fn unmount(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.disk.unmount());
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (seat, host) in SEATS.zip(&self.hosts) {
            // Separately, because mounts of other processes may keep the namespace alive.
            run_cleanup("ip", &["link", "delete", &line(&self.bridge, seat)]);
            run_cleanup("ip", &["netns", "delete", &host.namespace]);
        }
        run_cleanup("ip", &["link", "delete", &self.bridge]);
    }
}

/// Name of a seat's network interface on the bridge.
fn line(bridge: &str, seat: u64) -> String {
    format!("{bridge}-{seat}")
}

impl Host {
    fn make(dir: &Path, layer: &Path, seat: u64, net: &str) -> Result<Self> {
        let namespace = format!("{NAMESPACE_PREFIX}{}-{seat}", std::process::id());
        let (address, clock) = (format!("{net}.{seat}"), dir.join(format!("clock-{seat}")));
        fs::write(&clock, "+0\n")?;
        let disk = Disk::make(dir, &format!("disk-{seat}"))?;
        let faketime = faketime().context("libfaketime is not there")?;
        let environment = vec![
            format!("LD_PRELOAD={}:{}", faketime.display(), layer.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", clock.display()),
            format!("COMITY_FAULT_PAGE={}", disk.page().display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "FAKETIME_DISABLE_SHM=1".to_owned(),
            // Its name in older versions, too.
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "DONT_FAKE_MONOTONIC=1".to_owned(),
            "NO_FAKE_STAT=1".to_owned(),
        ];
        run("ip", &["netns", "add", &namespace])?;
        let place = Place { launch: launcher(namespace.clone(), environment), address: address.clone() };
        Ok(Self { namespace, address, clock, disk, place })
    }

    fn connect(&self, bridge: &str, seat: u64) -> Result<()> {
        let (outer, namespace) = (line(bridge, seat), self.namespace.as_str());
        let peer = ["link", "add", &outer, "type", "veth", "peer", "name", "eth0", "netns", namespace];
        run("ip", &peer)?;
        run("ip", &["link", "set", &outer, "master", bridge, "up"])?;
        let inside = |words: &[&str]| run("ip", &[&["-n", namespace], words].concat());
        inside(&["address", "add", &format!("{}/24", self.address), "dev", "eth0"])?;
        inside(&["link", "set", "eth0", "up"])?;
        inside(&["link", "set", "lo", "up"])?;
        self.nft(&["add", "table", "inet", "chaos"])?;
        self.nft(&["add", "chain", "inet", "chaos", "input", "{ type filter hook input priority 0 ; }"])
    }

    fn nft(&self, words: &[&str]) -> Result<()> {
        run("ip", &[&["netns", "exec", &self.namespace, "nft"], words].concat()).map(drop)
    }
}

/// Launches programs in the namespace; the argument after `--data` is the directory on the disk.
fn launcher(namespace: String, environment: Vec<String>) -> Launcher {
    Arc::new(move |program: &Path, args: &[String]| {
        let data = args.iter().skip_while(|word| *word != "--data").nth(1);
        let mut command = Command::new("ip");
        // Each of these becomes the next, so that a signal reaches the program.
        command.args(["netns", "exec", &namespace, "env"]).args(&environment);
        command.arg(format!("COMITY_FAULT_DIR={}", data.map_or("/nowhere", String::as_str)));
        command.arg(program).args(args);
        command
    })
}

/// Removes the leftovers of killed runs.
fn sweep() {
    // A zombie has no /proc/PID/exe.
    let alive = |pid: &str| fs::read_link(Path::new("/proc").join(pid).join("exe")).is_ok();
    for line in run("ip", &["netns", "list"]).unwrap_or_default().lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        if let Some((pid, _)) = name.strip_prefix(NAMESPACE_PREFIX).and_then(|rest| rest.split_once('-'))
            && !alive(pid)
        {
            for broker in run("ip", &["netns", "pids", name]).unwrap_or_default().lines() {
                run_cleanup("kill", &["-KILL", broker]);
            }
            run_cleanup("ip", &["netns", "delete", name]);
        }
    }
    disk::sweep(alive);
    for line in run("ip", &["-brief", "link"]).unwrap_or_default().lines() {
        let name = line.split([' ', '@']).next().unwrap_or_default();
        let pid = name.strip_prefix(BRIDGE_PREFIX).and_then(|rest| rest.split('-').next());
        // The kernel may already have removed the interface with its namespace.
        if pid.is_some_and(|pid| !alive(pid)) && Path::new("/sys/class/net").join(name).exists() {
            run_cleanup("ip", &["link", "delete", name]);
        }
    }
}
