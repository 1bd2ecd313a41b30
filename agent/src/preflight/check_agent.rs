//! The running agent, and the fabric's port, which only it may hold.

use std::net::UdpSocket;

use comity_runtime::checks::{Check, CheckList};

use super::check_udp;
use crate::config::Config;
use crate::devices::ReaderCounts;
use crate::services::local_api::{SOCKET, Status, fetch_status};

const AGENT_CHECK: &str = "agent";
const DEVICES_CHECK: &str = "devices";
const CANARIES_CHECK: &str = "canaries";
const LENDING_CHECK: &str = "lending";
const IDENTITIES_CHECK: &str = "identity keys";
const HANDSHAKES_CHECK: &str = "handshakes";
const OFFER_CHECK: &str = "offer";
const AUDIT_CHECK: &str = "audit log";
const SIGNED_POLICY_CHECK: &str = "signed policy";

pub(super) async fn check(config: &Config, list: &mut CheckList) {
    let status = fetch_status(&config.state_dir.join(SOCKET)).await;
    let listen = config.fabric.listen;
    list.push(match &status {
        Ok(_) => Check::ok(check_udp::UDP_CHECK, format!("the running agent listens on UDP {listen}")),
        Err(_) => match UdpSocket::bind(listen) {
            Ok(_) => Check::ok(check_udp::UDP_CHECK, format!("UDP {listen} is free")),
            Err(error) => Check::failed(
                check_udp::UDP_CHECK,
                format!("cannot listen on UDP {listen}: {error}"),
                format!("end the program that uses it (ss -lunp 'sport = {}'), or set fabric.listen", listen.port()),
            ),
        },
    });
    list.extend(status.as_ref().ok().and_then(|status| device_readers(config, status)));
    list.extend(status.as_ref().into_iter().flat_map(|status| missing_policies(config, status)));
    list.extend(status.as_ref().ok().and_then(unproved_nodes));
    list.extend(status.as_ref().ok().and_then(refused_identities));
    list.extend(status.as_ref().into_iter().flat_map(failed_handshakes));
    list.extend(status.as_ref().ok().and_then(refused_offer));
    list.extend(status.as_ref().ok().and_then(refused_audit_head));
    list.extend(status.as_ref().ok().and_then(signed_policy));
    list.push(match status {
        Ok(status) if status.connected => {
            let (tunnels, lent, borrowed) = (status.tunnels.len(), status.lent.len(), status.borrowed.len());
            Check::ok(
                AGENT_CHECK,
                format!("connected to a broker; tunnels: {tunnels}, lent: {lent}, borrowed: {borrowed}"),
            )
        }
        Ok(_) => {
            Check::failed(AGENT_CHECK, "runs, and is connected to no broker", "see its log; it tries again by itself")
        }
        Err(error) => Check::warning(AGENT_CHECK, error.to_string(), "run `comity-agent run`, as the agent's user"),
    });
}

/// Clusters that showed another identity key than the one that the agent knows; `None` if there are none.
fn refused_identities(status: &Status) -> Option<Check> {
    let clusters: Vec<&str> = status.refused_identities.iter().map(String::as_str).collect();
    (!clusters.is_empty()).then(|| {
        Check::failed(
            IDENTITIES_CHECK,
            format!("showed another identity key than the known one, and is refused: {}", clusters.join(", ")),
            "ask the operators there for their key, and decide with comity-agent peers accept CLUSTER --key KEY",
        )
    })
}

/// Peerings that do not come up, each with the reason.
fn failed_handshakes(status: &Status) -> impl Iterator<Item = Check> {
    status.failed_handshakes.iter().map(|(peering, reason)| {
        Check::failed(
            HANDSHAKES_CHECK,
            format!("{peering} does not come up: {reason}"),
            "see what the code in brackets means in docs/errors.md; the clusters try again by themselves",
        )
    })
}

/// An offer that the broker does not take; `None` if it took the newest.
fn refused_offer(status: &Status) -> Option<Check> {
    status.refused_offer.as_ref().map(|refusal| {
        Check::failed(
            OFFER_CHECK,
            format!("the broker refused the newest offer and lends by an earlier one, if any: {refusal}"),
            "see the code in docs/errors.md; the agent offers again when its nodes change or it connects again",
        )
    })
}

/// A broker that shows another history of the audit log; `None` if the newest head continues the anchor.
fn refused_audit_head(status: &Status) -> Option<Check> {
    status.refused_audit_head.as_ref().map(|refusal| {
        Check::failed(
            AUDIT_CHECK,
            refusal.clone(),
            "tell the maintainers, who run comity audit verify; if they recovered the brokers from an older copy, let the \
             agent accept that with comity-agent forget-audit-anchor (docs/audit.md)",
        )
    })
}

/// The policy that the agent has verified; `None` where it trusts none.
fn signed_policy(status: &Status) -> Option<Check> {
    let verified = status.signed_policy.as_ref()?;
    let Some(refusal) = &status.refused_policy else {
        return Some(Check::ok(SIGNED_POLICY_CHECK, format!("commit {verified}")));
    };
    Some(Check::failed(
        SIGNED_POLICY_CHECK,
        format!("the brokers' policy is not verified: {refusal}; verified is commit {verified}"),
        "ask the maintainers, through another channel than the broker, which commit is right; if they started a new \
         history, set signedPolicy.commit to one of its commits (docs/gitops.md)",
    ))
}

/// Policies for want of which the running agent lends nothing; guests may run here meanwhile.
fn missing_policies(config: &Config, status: &Status) -> impl Iterator<Item = Check> {
    let (is_lending, lent) = (config.sharing.enabled, status.lent.len());
    status.missing_policies.values().filter(move |_| is_lending).map(move |reason| {
        let detail = format!("the agent lends nothing, and does not hold the {lent} leases lent: {reason}");
        let remedy = "apply the file that it names with kubectl, as this cluster's owner; where a field was added, delete \
                      the policy first";
        match lent {
            0 => Check::warning(LENDING_CHECK, format!("the agent lends nothing: {reason}"), remedy),
            _ => Check::failed(LENDING_CHECK, detail, remedy),
        }
    })
}

/// Nodes that lend nothing, with the reason of the first; `None` if there are none.
fn unproved_nodes(status: &Status) -> Option<Check> {
    let (node, reason) = status.unproved.first_key_value()?;
    let detail = format!("nodes that lend nothing: {}; {node}: {reason}", status.unproved.len());
    Some(Check::warning(CANARIES_CHECK, detail, "kubectl -n comity-canary get pods; docs/sharing.md has the reasons"))
}

/// Whether all device readers answer; `None` on a host without Kubernetes.
fn device_readers(config: &Config, status: &Status) -> Option<Check> {
    config.kubernetes.as_ref()?;
    if config.usage.devices.is_none() {
        let detail = "no device reader: the requests of pods tell how many devices they hold, and not which";
        return Some(Check::ok(DEVICES_CHECK, detail));
    }
    let ReaderCounts { read, failed } = status.device_readers;
    if failed > 0 || read == 0 {
        return Some(Check::warning(
            DEVICES_CHECK,
            format!("device readers that answer: {read}, that do not: {failed}"),
            "see the agent's log for the reasons, and kubectl -n comity-devices get pods (deploy/agent/devices.yaml)",
        ));
    }
    Some(Check::ok(DEVICES_CHECK, format!("device readers that answer: {read}")))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::checks::Outcome;

    use super::*;
    use crate::config::KubernetesConfig;

    #[test]
    fn a_refused_identity_key_fails_the_check_and_names_the_decision() {
        let mut status = Status::default();
        assert!(refused_identities(&status).is_none());
        status.refused_identities = ["lab".to_owned()].into();
        let refused = refused_identities(&status).unwrap();
        assert!(refused.result == Outcome::Failed && refused.detail.contains("lab"), "{refused:?}");
    }

    #[test]
    fn a_failed_handshake_fails_the_check_with_its_reason() {
        let mut status = Status::default();
        assert_eq!(failed_handshakes(&status).count(), 0);
        let reason = "north: west shows no voucher (voucher-missing)";
        status.failed_handshakes = [("peer-6".to_owned(), reason.to_owned())].into();
        let failed: Vec<Check> = failed_handshakes(&status).collect();
        assert!(failed.len() == 1 && failed[0].result == Outcome::Failed, "{failed:?}");
        assert!(failed[0].detail.contains("peer-6") && failed[0].detail.ends_with(reason), "{failed:?}");
    }

    #[test]
    fn a_refused_offer_fails_the_check_and_says_why() {
        let mut status = Status::default();
        assert!(refused_offer(&status).is_none());
        status.refused_offer = Some("offer generation 7 is not above 9, the last one (stale-generation)".to_owned());
        let refused = refused_offer(&status).unwrap();
        assert!(refused.result == Outcome::Failed && refused.detail.contains("stale-generation"), "{refused:?}");
    }

    #[test]
    fn another_history_of_the_audit_log_fails_the_check() {
        let mut status = Status::default();
        assert!(refused_audit_head(&status).is_none());
        status.refused_audit_head = Some("broker 2: its first 13 records are not those seen before".to_owned());
        let refused = refused_audit_head(&status).unwrap();
        assert!(refused.result == Outcome::Failed && refused.detail.contains("broker 2"), "{refused:?}");
    }

    #[test]
    fn a_policy_that_is_not_verified_fails_the_check() {
        let mut status = Status::default();
        assert!(signed_policy(&status).is_none());
        status.signed_policy = Some("3f2a (trusted on first use)".to_owned());
        let told = signed_policy(&status).unwrap();
        assert!(told.result == Outcome::Ok && told.detail.contains("first use"), "{told:?}");
        status.refused_policy = Some("commit 8d1c changes Cluster `ncc-main`".to_owned());
        let told = signed_policy(&status).unwrap();
        assert!(told.result == Outcome::Failed && told.detail.contains("ncc-main"), "{told:?}");
    }

    #[test]
    fn a_policy_that_running_guests_lack_fails_the_check() {
        let (mut config, mut status) = (Config::default(), Status::default());
        let told = |config: &Config, status: &Status| missing_policies(config, status).collect::<Vec<_>>();
        assert!(told(&config, &status).is_empty());
        let reason = "comity-tenant: it is absent; apply deploy/agent/admission.yaml";
        status.missing_policies = [("comity-tenant".to_owned(), reason.to_owned())].into();
        assert_eq!(told(&config, &status)[0].result, Outcome::Warning);
        status.lent = [("lease-7".to_owned(), "comity-lease-7".to_owned())].into();
        let failed = &told(&config, &status)[0];
        assert!(failed.result == Outcome::Failed && failed.detail.ends_with(reason), "{failed:?}");
        config.sharing.enabled = false;
        assert!(told(&config, &status).is_empty());
    }

    #[test]
    fn nodes_that_lend_nothing_are_told_with_a_reason() {
        let mut status = Status::default();
        assert!(unproved_nodes(&status).is_none());
        status.unproved = ["gpu-1", "gpu-2"].map(|node| (node.to_owned(), "open".to_owned())).into();
        let told = unproved_nodes(&status).unwrap();
        assert_eq!((told.result, told.detail.as_str()), (Outcome::Warning, "nodes that lend nothing: 2; gpu-1: open"));
    }

    #[test]
    fn missing_device_readers_are_told() {
        let mut config = Config { kubernetes: Some(KubernetesConfig::default()), ..Config::default() };
        let mut status = Status::default();
        let absent = device_readers(&config, &status).unwrap();
        assert!(absent.result == Outcome::Ok && absent.detail.contains("no device reader"), "{absent:?}");
        config.usage.devices = Some("http://device-readers.comity-devices:7484".parse().unwrap());
        for (read, failed, expected) in [(0, 0, Outcome::Warning), (2, 1, Outcome::Warning), (2, 0, Outcome::Ok)] {
            status.device_readers = ReaderCounts { read, failed };
            assert_eq!(device_readers(&config, &status).unwrap().result, expected, "{read} {failed}");
        }
        config.kubernetes = None;
        assert!(device_readers(&config, &status).is_none());
    }
}
