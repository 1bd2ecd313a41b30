//! The document that the gateway publishes and its cluster's other nodes follow. It contains nothing secret.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::MIN_OVERLAY_MTU;
use crate::mode::{MAX_MTU, MAX_VNI};

/// Increased when older nodes could misread the document.
const VERSION: u32 = 1;
/// Largest document that is read.
const MAX_BYTES: usize = 512 * 1024;
/// Most pod networks: 64 for every peering.
const MAX_POD_NETWORKS: usize = 65_536;
/// Most ways to API servers. The kernel compares each packet of the node with each.
pub(in crate::tun) const MAX_API_ROUTES: usize = 1_024;

/// A pod that reaches a donor's API server through the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiRoute {
    /// Address of the pod.
    pub client: Ipv4Addr,
    /// Address of the API server.
    pub server: SocketAddrV4,
}

/// The networks beyond the tunnels, and how a node reaches the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The gateway's InternalIP.
    pub gateway: Ipv4Addr,
    /// VXLAN network identifier of the overlay.
    pub vni: u32,
    /// UDP port of the overlay.
    pub port: u16,
    /// MTU of the gateway's end.
    pub mtu: u16,
    /// Pod networks of other clusters.
    pub pod_networks: BTreeSet<Ipv4Net>,
    /// Pods of this cluster, with the API servers of donors that they reach.
    pub api_routes: BTreeSet<ApiRoute>,
}

/// Why a document is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {value:?} is refused: {remedy}")]
pub struct PublishedError {
    /// Name of the invalid field.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// How to correct it.
    pub remedy: String,
}

fn refused(field: &'static str, value: impl Display, remedy: impl Into<String>) -> PublishedError {
    let value: String = value.to_string().chars().take(100).collect();
    PublishedError { field, value, remedy: remedy.into() }
}

/// The serialized form.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    version: u32,
    generation: u64,
    gateway: String,
    vni: u32,
    port: u16,
    mtu: u16,
    pod_networks: Vec<String>,
    api_routes: Vec<ApiRouteDocument>,
}

/// The serialized form of [`ApiRoute`].
#[derive(Serialize, Deserialize)]
struct ApiRouteDocument {
    client: String,
    server: String,
}

impl Published {
    /// Whether nothing is beyond the tunnels: nodes then need no overlay.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pod_networks.is_empty() && self.api_routes.is_empty()
    }

    /// The document as JSON.
    #[must_use]
    pub fn document(&self, generation: u64) -> String {
        let document = Document {
            version: VERSION,
            generation,
            gateway: self.gateway.to_string(),
            vni: self.vni,
            port: self.port,
            mtu: self.mtu,
            pod_networks: self.pod_networks.iter().map(ToString::to_string).collect(),
            api_routes: self.api_routes.iter().map(ApiRouteDocument::of).collect(),
        };
        serde_json::to_string(&document).unwrap_or_default()
    }

    /// Reads a document, with its generation.
    ///
    /// # Errors
    /// [`PublishedError`] for the first invalid field.
    pub fn read(text: &str) -> Result<(Self, u64), PublishedError> {
        let agent = "upgrade the agents of the gateway and of its nodes to one version";
        if text.len() > MAX_BYTES {
            return Err(refused("the document", format!("{} bytes", text.len()), format!("want at most {MAX_BYTES}")));
        }
        let document: Document = serde_json::from_str(text).map_err(|error| {
            refused("the document", error, "the gateway's agent writes it again within a minute if it is deleted")
        })?;
        if document.version != VERSION {
            return Err(refused("version", document.version, agent));
        }
        let gateway: Ipv4Addr = parse("gateway", &document.gateway, "want the gateway's IPv4 address")?;
        if gateway.is_unspecified() || gateway.is_loopback() || gateway.is_multicast() || gateway.is_broadcast() {
            return Err(refused("gateway", gateway, "want the gateway's InternalIP"));
        }
        if document.vni == 0 || document.vni > MAX_VNI {
            return Err(refused("vni", document.vni, format!("want 1 to {MAX_VNI}")));
        }
        if document.port == 0 {
            return Err(refused("port", document.port, "want a UDP port"));
        }
        if u32::from(document.mtu) < MIN_OVERLAY_MTU || document.mtu > MAX_MTU {
            return Err(refused("mtu", document.mtu, format!("want {MIN_OVERLAY_MTU} to {MAX_MTU}")));
        }
        for (field, count, most) in [
            ("podNetworks", document.pod_networks.len(), MAX_POD_NETWORKS),
            ("apiRoutes", document.api_routes.len(), MAX_API_ROUTES),
        ] {
            if count > most {
                return Err(refused(field, format!("{count} entries"), format!("want at most {most}")));
            }
        }
        let mut pod_networks = BTreeSet::new();
        for text in &document.pod_networks {
            let net: Ipv4Net = parse("podNetworks", text, "want IPv4 networks, as in 10.2.0.0/16")?;
            if net.prefix_len() == 0 || net.addr() != net.network() {
                return Err(refused(
                    "podNetworks",
                    net,
                    "want networks narrower than everything, without further bits",
                ));
            }
            pod_networks.insert(net);
        }
        let mut api_routes = BTreeSet::new();
        for ApiRouteDocument { client, server } in &document.api_routes {
            let client = parse("apiRoutes.client", client, "want a pod's IPv4 address")?;
            let server = parse("apiRoutes.server", server, "want an IPv4 address and a port, as in 203.0.113.10:6443")?;
            api_routes.insert(ApiRoute { client, server });
        }
        let (vni, port, mtu) = (document.vni, document.port, document.mtu);
        Ok((Self { gateway, vni, port, mtu, pod_networks, api_routes }, document.generation))
    }
}

impl ApiRouteDocument {
    fn of(route: &ApiRoute) -> Self {
        Self { client: route.client.to_string(), server: route.server.to_string() }
    }
}

fn parse<T: FromStr>(field: &'static str, text: &str, remedy: &str) -> Result<T, PublishedError> {
    text.parse().map_err(|_| refused(field, text, remedy))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
pub(super) mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    pub(in crate::tun::overlay) fn published() -> Published {
        Published {
            gateway: Ipv4Addr::new(198, 51, 100, 10),
            vni: 51_872,
            port: 51_872,
            mtu: 1420,
            pod_networks: BTreeSet::from(["10.2.0.0/16".parse().unwrap(), "10.3.0.0/16".parse().unwrap()]),
            api_routes: BTreeSet::from([ApiRoute {
                client: Ipv4Addr::new(10, 1, 0, 7),
                server: "203.0.113.10:6443".parse().unwrap(),
            }]),
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let text = published().document(7);
        assert_eq!(Published::read(&text).unwrap(), (published(), 7));
        assert!(!published().is_empty());
        // A later version may add fields.
        let more = text.replacen('{', "{\"more\":1,", 1);
        assert_eq!(Published::read(&more).unwrap().1, 7);
    }

    #[test]
    fn documents_of_gateways() {
        fuzz!("overlay_document", vec![published().document(7).into_bytes()], |bytes: &[u8]| {
            let Ok(text) = std::str::from_utf8(bytes) else { return false };
            match Published::read(text) {
                Ok((published, generation)) => {
                    let again = Published::read(&published.document(generation));
                    assert_eq!(again, Ok((published, generation)), "what was read is written, and reads the same");
                    true
                }
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains(" is refused: ") && !error.contains(char::is_control), "{error:?}");
                    false
                }
            }
        });
    }

    #[test]
    fn invalid_values_are_named() {
        let text = published().document(7);
        for (from, to, field) in [
            ("\"version\":1", "\"version\":2", "version \"2\""),
            ("198.51.100.10", "gateway.example", "gateway \"gateway.example\""),
            ("198.51.100.10", "127.0.0.1", "gateway \"127.0.0.1\""),
            ("\"vni\":51872", "\"vni\":0", "vni \"0\""),
            ("\"mtu\":1420", "\"mtu\":100", "mtu \"100\""),
            ("10.2.0.0/16", "10.2.0.1/16", "podNetworks \"10.2.0.1/16\""),
            ("10.2.0.0/16", "0.0.0.0/0", "podNetworks \"0.0.0.0/0\""),
            ("10.2.0.0/16", "fd00::/8", "podNetworks \"fd00::/8\""),
            ("203.0.113.10:6443", "api:6443", "apiRoutes.server \"api:6443\""),
            ("10.1.0.7", "fd00::7", "apiRoutes.client \"fd00::7\""),
            ("\"gateway\"", "\"gate\"", "the document"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = Published::read(&text.replace(from, to)).unwrap_err().to_string();
            assert!(error.starts_with(field) && error.contains("is refused: "), "{error}");
        }
    }
}
