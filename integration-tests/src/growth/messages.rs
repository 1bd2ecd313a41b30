//! The messages of a simulated cluster: the steps of peerings and leases, with dummy keys and secrets.

use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::{lease_report, peering_report};

/// Ciphertext of a handshake's envelope.
const HANDSHAKE_BYTES: usize = 80;
/// Ciphertext of a typical kubeconfig.
const KUBECONFIG_BYTES: usize = 2_500;

/// Key of a message that is sent once: its step, the id of the peering or lease, and the epoch.
pub(super) type MessageKey = (ReportStep, String, u32);

/// The step of a peering or lease that a message reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ReportStep {
    Keys,
    PresharedKey,
    Proof,
    Authenticated,
    Established,
    Closed,
    Acknowledged,
    Credential,
    Ready,
    Clean,
}

/// All messages that a cluster would send for its desired state.
pub(super) fn pending(cluster: &str, identity_key: &str, desired: &v1::DesiredState) -> Vec<(MessageKey, Body)> {
    let mut all = Vec::new();
    for peering in desired.peerings.iter().filter_map(|directive| directive.peering.as_ref()) {
        of_peering(cluster, identity_key, peering, &mut all);
    }
    for envelope in &desired.envelopes {
        of_envelope(cluster, envelope, &mut all);
    }
    for lease in &desired.leases {
        of_lease(cluster, desired, lease, &mut all);
    }
    all
}

fn of_peering(cluster: &str, identity_key: &str, peering: &v1::Peering, all: &mut Vec<(MessageKey, Body)>) {
    use v1::PeeringState as S;
    let is_donor = peering.donor == cluster;
    let word = |step| (step, peering.id.clone(), peering.epoch);
    let report = |outcome| {
        let outcome = Some(outcome);
        Body::PeeringReport(v1::PeeringReport { peering: peering.id.clone(), epoch: peering.epoch, outcome })
    };
    match peering.state() {
        S::Proposed | S::Keys => {
            all.push((word(ReportStep::Keys), Body::KeyBundle(keys(cluster, identity_key, peering))))
        }
        S::Authenticating if is_donor => {
            let envelope = v1::Envelope {
                from: cluster.to_owned(),
                to: peering.origin.clone(),
                peering: peering.id.clone(),
                epoch: peering.epoch,
                step: "psk".to_owned(),
                ..sealed(HANDSHAKE_BYTES)
            };
            all.push((word(ReportStep::PresharedKey), Body::Envelope(envelope)));
        }
        S::Establishing => {
            let outcome = peering_report::Outcome::Established(peering_report::Established { rtt_us: 900 });
            all.push((word(ReportStep::Established), report(outcome)));
        }
        S::Draining => {
            let outcome = peering_report::Outcome::Closed(peering_report::Closed {});
            all.push((word(ReportStep::Closed), report(outcome)));
        }
        _ => {}
    }
}

fn keys(cluster: &str, identity_key: &str, peering: &v1::Peering) -> v1::KeyBundle {
    let side = if peering.donor == cluster { v1::Side::Donor } else { v1::Side::Origin };
    v1::KeyBundle {
        peering: peering.id.clone(),
        epoch: peering.epoch,
        cluster: cluster.to_owned(),
        side: side.into(),
        wireguard_public: vec![1; 32],
        hpke_public: vec![2; 1_216],
        endpoints: vec!["192.0.2.1:51871".to_owned()],
        identity_key: identity_key.to_owned(),
        voucher: Vec::new(),
        signature: vec![3; 64],
        network: Some(v1::ClusterNetwork {
            pod_cidrs: vec!["10.44.0.0/16".to_owned()],
            api_server: "192.0.2.1:6443".to_owned(),
            liqo_cluster_id: cluster.to_owned(),
            liqo_version: "v1.2.0".to_owned(),
            tun: true,
            liqo_network: false,
        }),
    }
}

fn of_envelope(cluster: &str, received: &v1::Envelope, all: &mut Vec<(MessageKey, Body)>) {
    let about = if received.lease.is_empty() { &received.peering } else { &received.lease };
    let word = |step| (step, received.peering.clone(), received.epoch);
    match received.step.as_str() {
        // The origin's proof shows that it opened the key; the donor's confirmation advances the peering.
        "psk" => {
            let proof = v1::Envelope {
                from: cluster.to_owned(),
                to: received.from.clone(),
                peering: received.peering.clone(),
                epoch: received.epoch,
                step: "proof".to_owned(),
                ..sealed(HANDSHAKE_BYTES)
            };
            all.push((word(ReportStep::Proof), Body::Envelope(proof)));
        }
        "proof" => {
            let outcome = Some(peering_report::Outcome::Authenticated(peering_report::Authenticated {}));
            let report = v1::PeeringReport { peering: received.peering.clone(), epoch: received.epoch, outcome };
            all.push((word(ReportStep::Authenticated), Body::PeeringReport(report)));
        }
        _ => {}
    }
    let acknowledgement = v1::EnvelopeAck {
        peering: received.peering.clone(),
        epoch: received.epoch,
        lease: received.lease.clone(),
        step: received.step.clone(),
        sequence: received.sequence,
    };
    // Each cluster gets one envelope of a peering and one of a lease.
    all.push(((ReportStep::Acknowledged, about.clone(), received.epoch), Body::EnvelopeAck(acknowledgement)));
}

fn of_lease(cluster: &str, desired: &v1::DesiredState, lease: &v1::Lease, all: &mut Vec<(MessageKey, Body)>) {
    let is_donor = lease.origin != cluster;
    let word = |step| (step, lease.id.clone(), 0);
    let report = |outcome| {
        let outcome = Some(outcome);
        Body::LeaseReport(v1::LeaseReport { lease: lease.id.clone(), fencing_token: lease.fencing_token, outcome })
    };
    if lease.state() == v1::LeaseState::Ending {
        all.push((word(ReportStep::Clean), report(lease_report::Outcome::Clean(lease_report::Clean {}))));
        return;
    }
    let is_ready = if is_donor { lease.donor_ready } else { lease.origin_ready || !lease.donor_ready };
    if is_ready {
        return;
    }
    let mut peerings = desired.peerings.iter().filter_map(|directive| directive.peering.as_ref());
    let Some(peering) = peerings.find(|peering| peering.id == lease.peering) else { return };
    if peering.state() != v1::PeeringState::Established {
        return;
    }
    let name = format!("comity-{}", lease.id);
    let (namespace, secret_name) = if is_donor { (name, String::new()) } else { (String::new(), name) };
    if is_donor {
        let credential = v1::Envelope {
            from: cluster.to_owned(),
            to: lease.origin.clone(),
            peering: peering.id.clone(),
            epoch: peering.epoch,
            lease: lease.id.clone(),
            step: "credential".to_owned(),
            ..sealed(KUBECONFIG_BYTES)
        };
        all.push((word(ReportStep::Credential), Body::Envelope(credential)));
    }
    let ready = lease_report::Ready { namespace, secret_name };
    all.push((word(ReportStep::Ready), report(lease_report::Outcome::Ready(ready))));
}

/// An envelope with a ciphertext of this size and dummy keys.
fn sealed(bytes: usize) -> v1::Envelope {
    v1::Envelope {
        sequence: 1,
        encapsulated_key: vec![4; 1_120],
        ciphertext: vec![5; bytes],
        expires_at_ms: u64::MAX,
        ..v1::Envelope::default()
    }
}
