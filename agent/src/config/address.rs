//! Checks of addresses: their form, and conflicts between listeners.

use std::net::SocketAddr;

use comity_agent_model::api_port::API_PORT;
use comity_agent_model::settings::SettingChecks;
use rustls_pki_types::ServerName;

use super::{Config, FabricModeName};

/// Whether the text is "host:port", its host a name or an address (an IPv6 one in brackets).
pub(super) fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|inner| inner.contains(':')),
        None => Some(host).filter(|host| !host.contains(':')),
    };
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    is_port && host.is_some_and(|host| ServerName::try_from(host).is_ok())
}

/// Refuses two listeners of one protocol at one address.
pub(super) fn check_listeners(config: &Config, checks: &mut SettingChecks) {
    let is_tun = config.fabric.mode == FabricModeName::Tun;
    let at_all = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
    let mut tcp = vec![("adminListen", config.admin_listen)];
    // A gateway listens on it at addresses of its node, for the APIs of donors.
    tcp.extend(is_tun.then(|| ("the fabric's port for APIs", at_all(API_PORT))));
    tcp.extend(config.webhook.as_ref().map(|it| ("webhook.listen", it.listen)));
    tcp.extend(config.liqo.pod_metrics.as_ref().map(|it| ("liqo.podMetrics.listen", it.listen)));
    let mut udp = vec![("fabric.listen", config.fabric.listen)];
    let overlay = &config.fabric.tun.overlay;
    udp.extend((is_tun && overlay.enabled).then(|| ("fabric.tun.overlay.port", at_all(overlay.port))));
    for (protocol, listeners) in [("TCP", tcp), ("UDP", udp)] {
        for (at, (field, address)) in listeners.iter().enumerate() {
            if let Some((other, _)) = listeners[..at].iter().find(|(_, other)| is_same(*other, *address)) {
                checks.refuse(field, address, format!("{other} has the same {protocol} port; give it another"));
            }
        }
    }
}

/// Whether two listen addresses conflict.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.port() != 0 && (is_any || one.ip() == other.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_ports_are_recognized() {
        for good in ["gw.example.org:51871", "10.0.0.1:0", "[2001:db8::1]:6443", "localhost:1"] {
            assert!(is_host_port(good), "{good}");
        }
        for bad in
            ["gw", "gw:", ":1", "a b:1", "gw.example.org: 1", "https://a:1", "2001:db8::1:6443", "[a]:1", "a:65536"]
        {
            assert!(!is_host_port(bad), "{bad}");
        }
    }
}
