//! Values that `comity-broker up` chooses when the caller names none.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _, UdpSocket};
use std::path::PathBuf;

use comity_runtime::spiffe::{TrustDomain, UserName};

/// Trust domain of a host without a domain.
const FALLBACK_DOMAIN: &str = "comity.internal";
/// Data directory of root.
const SYSTEM_DATA: &str = "/var/lib/comity-broker";
/// Folder and name of the data directory of other users.
const USER_DATA: &str = "comity-broker";

/// Facts about the host and the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// The host's name, often without a domain.
    pub host_name: String,
    /// Whether the host's name resolves to an address that others can reach.
    pub name_resolves: bool,
    /// The source address of packets to other hosts.
    pub address: Option<IpAddr>,
    /// The caller's login name: under sudo, that of the caller of sudo.
    pub user: Option<String>,
    /// Whether the process runs as root.
    pub is_root: bool,
    /// `$XDG_STATE_HOME`, or `~/.local/state`.
    pub state_home: Option<PathBuf>,
}

impl HostFacts {
    /// Asks the operating system. Blocks while the host's name is resolved.
    #[must_use]
    pub fn read() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let host_name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
        let state_home = set("XDG_STATE_HOME").map(PathBuf::from);
        let user = set("SUDO_USER").or_else(|| set("USER")).and_then(|user| user.into_string().ok());
        Self {
            name_resolves: host_name.contains('.') && resolves(&host_name),
            host_name,
            address: outward_address(),
            user,
            is_root: rustix::process::geteuid().is_root(),
            state_home: state_home.or_else(|| Some(PathBuf::from(set("HOME")?).join(".local/state"))),
        }
    }

    /// Host under which others reach this broker: the full host name if it resolves, otherwise the address.
    #[must_use]
    pub fn host(&self) -> String {
        if self.name_resolves {
            return self.host_name.clone();
        }
        match self.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)) {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        }
    }

    /// The domain of the host's name, or `comity.internal`.
    #[must_use]
    pub fn trust_domain(&self) -> TrustDomain {
        let domain = self.host_name.split_once('.').and_then(|(_, domain)| TrustDomain::new(domain).ok());
        domain.unwrap_or_else(|| TrustDomain::new(FALLBACK_DOMAIN).expect("it is valid"))
    }

    /// The caller's name, or `admin` if it cannot be the name of a user.
    #[must_use]
    pub fn admin(&self) -> UserName {
        let user = self.user.as_deref().and_then(|user| UserName::new(user).ok());
        user.unwrap_or_else(|| UserName::new("admin").expect("it is valid"))
    }

    /// The data directory; `None` for a user without a home directory.
    #[must_use]
    pub fn data(&self) -> Option<PathBuf> {
        if self.is_root { Some(PathBuf::from(SYSTEM_DATA)) } else { Some(self.state_home.as_ref()?.join(USER_DATA)) }
    }
}

/// The institution of a federation that names none: the first label of its trust domain.
#[must_use]
pub fn default_institution(trust_domain: &TrustDomain) -> String {
    let first = trust_domain.as_str().split('.').next().unwrap_or_default();
    first.chars().take(63).collect::<String>().trim_matches('-').to_owned()
}

fn resolves(host: &str) -> bool {
    let addresses = (host, 0).to_socket_addrs();
    addresses.is_ok_and(|mut addresses| addresses.any(|address| !address.ip().is_loopback()))
}

/// Connecting a UDP socket chooses a source address and sends nothing. The targets are documentation addresses.
fn outward_address() -> Option<IpAddr> {
    let from = |local: &str, target: &str| {
        let socket = UdpSocket::bind(local).ok()?;
        socket.connect(target).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback() && !address.is_unspecified())
    };
    from("0.0.0.0:0", "192.0.2.1:9").or_else(|| from("[::]:0", "[2001:db8::1]:9"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> HostFacts {
        HostFacts {
            host_name: "gpu1.cs.example.org".to_owned(),
            name_resolves: true,
            address: Some(IpAddr::from([10, 0, 0, 7])),
            user: Some("ada".to_owned()),
            is_root: false,
            state_home: Some(PathBuf::from("/home/ada/.local/state")),
        }
    }

    #[test]
    fn a_host_with_a_domain_gives_all_values() {
        let facts = facts();
        assert_eq!(facts.host(), "gpu1.cs.example.org");
        assert_eq!(facts.trust_domain().as_str(), "cs.example.org");
        assert_eq!(default_institution(&facts.trust_domain()), "cs");
        assert_eq!(facts.admin().as_str(), "ada");
        assert_eq!(facts.data(), Some(PathBuf::from("/home/ada/.local/state/comity-broker")));
    }

    #[test]
    fn a_host_without_a_domain_gives_its_address() {
        let facts = HostFacts { host_name: "gpu1".to_owned(), name_resolves: false, is_root: true, ..facts() };
        assert_eq!(facts.host(), "10.0.0.7");
        assert_eq!(facts.trust_domain().as_str(), "comity.internal");
        assert_eq!(default_institution(&facts.trust_domain()), "comity");
        assert_eq!(facts.data(), Some(PathBuf::from("/var/lib/comity-broker")));
        let v6 = HostFacts { address: "2001:db8::7".parse().ok(), ..facts.clone() };
        assert_eq!(v6.host(), "[2001:db8::7]");
        let alone = HostFacts { address: None, user: Some("äda".to_owned()), ..facts };
        assert_eq!((alone.host().as_str(), alone.admin().as_str()), ("127.0.0.1", "admin"));
    }
}
