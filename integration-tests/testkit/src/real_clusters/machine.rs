//! Requirements of a machine for real clusters.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Required programs; `scripts/system-packages` installs them on Debian.
const SYSTEM_PROGRAMS: [&str; 14] = [
    "bash",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "ip",
    "nft",
    "iptables",
    "unshare",
    "nsenter",
    "setpriv",
    "flock",
    "sysctl",
    "awk",
];
/// Where root's programs are, also when PATH does not say so.
const PROGRAM_FOLDERS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// Where distributions put the CNI plugins.
const CNI_FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// Missing requirements of this machine, each with its remedy.
pub(super) fn missing() -> Vec<String> {
    let mut missing = Vec::new();
    if !cfg!(target_os = "linux") {
        missing.push("Linux".to_owned());
    }
    if !fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        missing.push("root (run it as root)".to_owned());
    }
    missing.extend(missing_programs(&SYSTEM_PROGRAMS));
    if cni_folder().is_none() {
        missing.push("the CNI plugins (scripts/system-packages installs them)".to_owned());
    }
    if missing.is_empty() && !may_make_namespaces() {
        missing.push("leave to make namespaces and mounts (in a container: --privileged)".to_owned());
    }
    missing
}

/// Those programs of the system that are missing, with the remedy.
pub(super) fn missing_programs(programs: &[&str]) -> Option<String> {
    let is_there = |program: &str| PROGRAM_FOLDERS.iter().any(|folder| Path::new(folder).join(program).exists());
    let absent: Vec<&str> = programs.iter().copied().filter(|program| !is_there(program)).collect();
    (!absent.is_empty()).then(|| format!("the programs {} (scripts/system-packages installs them)", absent.join(", ")))
}

/// Tries it, in a namespace that ends with the attempt.
fn may_make_namespaces() -> bool {
    Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--fork", "--cgroup", "mount", "-t", "tmpfs", "tmpfs", "/mnt"])
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}

/// The folder of the CNI plugins that the nodes need.
pub(super) fn cni_folder() -> Option<&'static str> {
    CNI_FOLDERS
        .into_iter()
        .find(|folder| ["bridge", "host-local", "portmap"].iter().all(|plugin| Path::new(folder).join(plugin).exists()))
}
