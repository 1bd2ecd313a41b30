//! The fabric's UDP port: free here, and reached by a datagram of the broker.

use std::time::Duration;

use comity_proto::{MAX_UDP_PROBES, UDP_PROBE_MAGIC, UDP_PROBE_NONCE_BYTES, UDP_PROBE_OTHER_ADDRESS, v1};
use comity_runtime::Entropy;
use comity_runtime::checks::Check;
use comity_types::Side;
use tokio::net::UdpSocket;

use crate::config::Config;

pub(super) const UDP_CHECK: &str = "udp port";
/// How long a datagram may take.
const ARRIVES_WITHIN: Duration = Duration::from_secs(3);
/// Datagrams that are looked at: strangers may send some too.
const MAX_DATAGRAMS: usize = 1_000;

/// The bound port, and what the broker's datagrams must contain.
pub(super) struct UdpProbe {
    socket: UdpSocket,
    pub(super) endpoints: Vec<String>,
    pub(super) nonce: [u8; UDP_PROBE_NONCE_BYTES],
}

impl UdpProbe {
    /// Binds the fabric's port.
    pub(super) async fn listen(config: &Config, entropy: &dyn Entropy) -> Result<Self, Check> {
        let listen = config.fabric.listen;
        let busy = |error: std::io::Error| {
            Check::failed(
                UDP_CHECK,
                format!("cannot listen on UDP {listen}: {error}"),
                format!("end the program that uses it (ss -lunp 'sport = {}'), or set fabric.listen", listen.port()),
            )
        };
        let socket = UdpSocket::bind(listen).await.map_err(busy)?;
        let local = socket.local_addr().map_err(busy)?;
        let endpoints = config.fabric_endpoints(local).into_iter().take(MAX_UDP_PROBES).collect();
        let mut nonce = [0; UDP_PROBE_NONCE_BYTES];
        entropy.fill(&mut nonce);
        Ok(Self { socket, endpoints, nonce })
    }

    /// Waits for a datagram. A donor must be reachable, because an origin may not be.
    pub(super) async fn check(&self, probes: &[v1::UdpProbe], side: Side) -> Check {
        if self.endpoints.is_empty() {
            return not_reached(
                side,
                "no fabric.endpoints are configured, so no other cluster can reach this one".to_owned(),
            );
        }
        let unsent: Vec<String> = probes
            .iter()
            .filter(|probe| !probe.not_sent.is_empty())
            .map(|probe| format!("{}: {}", probe.endpoint, probe.not_sent))
            .collect();
        if unsent.len() == self.endpoints.len() {
            let detail = format!("the broker sent nothing: {}", unsent.join("; "));
            if probes.iter().any(|probe| probe.not_sent.ends_with(UDP_PROBE_OTHER_ADDRESS)) {
                let remedy = "send a UDP datagram to the endpoint from outside, and look for it with tcpdump";
                return Check::warning(UDP_CHECK, format!("not checked: {detail}"), remedy);
            }
            return not_reached(side, detail);
        }
        let endpoints = self.endpoints.join(", ");
        if tokio::time::timeout(ARRIVES_WITHIN, self.arrival()).await.unwrap_or(false) {
            return Check::ok(UDP_CHECK, format!("a datagram of the broker arrived at {endpoints}"));
        }
        let seconds = ARRIVES_WITHIN.as_secs();
        not_reached(side, format!("no datagram of the broker arrived at {endpoints} within {seconds} s"))
    }

    async fn arrival(&self) -> bool {
        let expected = [UDP_PROBE_MAGIC, &self.nonce].concat();
        let mut datagram = [0; 64];
        for _ in 0..MAX_DATAGRAMS {
            // An error of a single datagram, such as an ICMP answer to an earlier one, says nothing about the next.
            if let Ok((length, _)) = self.socket.recv_from(&mut datagram).await
                && datagram[..length] == expected[..]
            {
                return true;
            }
        }
        false
    }
}

fn not_reached(side: Side, detail: String) -> Check {
    let remedy = "open the UDP port in the firewall, forward it to this host, and name its public address in \
                  fabric.endpoints";
    if side == Side::Donor {
        return Check::failed(
            UDP_CHECK,
            detail,
            format!("{remedy}; or add --skip udp to lend only to reachable clusters"),
        );
    }
    let only = "this cluster can borrow only from donors that others reach";
    Check::warning(UDP_CHECK, format!("{detail}; {only}"), remedy)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::SeededEntropy;
    use comity_runtime::checks::Outcome;

    use super::*;

    async fn listening() -> (UdpProbe, UdpSocket) {
        let mut config = Config::default();
        config.fabric.listen = "127.0.0.1:0".parse().unwrap();
        let probe = UdpProbe::listen(&config, &SeededEntropy::new(1)).await.unwrap();
        (probe, UdpSocket::bind("127.0.0.1:0").await.unwrap())
    }

    fn sent(probe: &UdpProbe) -> Vec<v1::UdpProbe> {
        vec![v1::UdpProbe { endpoint: probe.endpoints[0].clone(), not_sent: String::new() }]
    }

    #[tokio::test]
    async fn only_the_datagram_with_the_nonce_counts() {
        let (probe, broker) = listening().await;
        let datagram = |nonce: &[u8]| [UDP_PROBE_MAGIC, nonce].concat();
        broker.send_to(&datagram(&[0; 16]), &probe.endpoints[0]).await.unwrap();
        assert_eq!(probe.check(&sent(&probe), Side::Donor).await.result, Outcome::Failed);
        broker.send_to(&datagram(&probe.nonce), &probe.endpoints[0]).await.unwrap();
        assert_eq!(probe.check(&sent(&probe), Side::Donor).await.result, Outcome::Ok);
    }

    #[tokio::test]
    async fn an_unreachable_port_fails_a_donor_and_warns_an_origin() {
        let (mut probe, _broker) = listening().await;
        let refused = vec![v1::UdpProbe { endpoint: "gw:1".to_owned(), not_sent: "unknown".to_owned() }];
        let check = probe.check(&refused, Side::Donor).await;
        assert!(check.result == Outcome::Failed && check.remedy.contains("--skip udp"), "{check:?}");
        assert_eq!(probe.check(&refused, Side::Origin).await.result, Outcome::Warning);
        // Behind two addresses, a donor may well be reachable.
        let not_sent = format!("192.0.2.9 is not 192.0.2.1; {UDP_PROBE_OTHER_ADDRESS}");
        let elsewhere = vec![v1::UdpProbe { not_sent, ..refused[0].clone() }];
        let check = probe.check(&elsewhere, Side::Donor).await;
        assert!(check.result == Outcome::Warning && check.detail.contains("192.0.2.9 is not"), "{check:?}");
        probe.endpoints.clear();
        assert!(probe.check(&[], Side::Donor).await.detail.contains("fabric.endpoints"));
    }

    #[tokio::test]
    async fn a_port_in_use_is_named_with_the_remedy() {
        let (_, other) = listening().await;
        let mut config = Config::default();
        config.fabric.listen = other.local_addr().unwrap();
        let check = UdpProbe::listen(&config, &SeededEntropy::new(1)).await.err().unwrap();
        assert!(check.detail.contains(&config.fabric.listen.to_string()) && check.remedy.contains("ss -lunp"));
    }
}
