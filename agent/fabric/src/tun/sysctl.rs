//! The few kernel settings of the network device.
//!
//! Reverse path filtering needs none: every packet from the device has a source with a route over the device.

use std::fs;
use std::path::PathBuf;

fn path(family: &str, device: &str, setting: &str) -> PathBuf {
    PathBuf::from(format!("/proc/sys/net/{family}/conf/{device}/{setting}"))
}

fn read(path: &PathBuf) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn set(path: &PathBuf, value: &str) {
    if read(path).is_some_and(|now| now != value)
        && let Err(error) = fs::write(path, value)
    {
        tracing::warn!(path = %path.display(), value, %error, "a kernel setting that the fabric needs cannot be set");
    }
}

/// Enables forwarding from the device, and IPv6 addresses on it.
pub(super) fn prepare(device: &str) {
    set(&path("ipv4", device, "forwarding"), "1");
    set(&path("ipv6", device, "disable_ipv6"), "0");
    if read(&PathBuf::from("/proc/sys/net/ipv4/ip_forward")).as_deref() == Some("0") {
        tracing::warn!("net.ipv4.ip_forward is 0: this node does not forward its pods' packets into the tunnels");
    }
}

/// Whether the device can have IPv6 addresses.
pub(super) fn has_ipv6(device: &str) -> bool {
    read(&path("ipv6", device, "disable_ipv6")).as_deref() == Some("0")
}
