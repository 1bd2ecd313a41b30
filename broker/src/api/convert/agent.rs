//! Converts agent reports to commands, and desired states to messages.

use comity_core::command::{
    AckEnvelope, AdvertiseOffer, LeaseOutcome, OfferKeys, PeeringOutcome, RelayEnvelope, ReportLease, ReportPeering,
};
use comity_core::envelope::{Envelope, EnvelopeKey, Step};
use comity_core::keys::KeyBundle;
use comity_core::limits::{MAX_ENDPOINT_BYTES, MAX_ENDPOINTS, MAX_ENVELOPE_BYTES, MAX_MESSAGE_BYTES, MAX_POD_CIDRS};
use comity_core::network::ClusterNetwork;
use comity_core::peering::Peering;
use comity_core::{Command, Millis, Refusal, State, Timestamp};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_types::{ClusterId, LeaseId, PeeringId, Side, is_dns_subdomain, is_printable};

use crate::api::convert::{offer, peering, required};

/// Bytes of a failure's code.
const MAX_CODE_BYTES: usize = 64;
/// Bytes of a namespace or Secret name: a DNS subdomain.
const MAX_NAME_BYTES: usize = 253;
/// Bytes of an identity key's text.
const MAX_IDENTITY_KEY_BYTES: usize = 64;

/// Converts a report to a command; `caller` is the cluster of the certificate. Refuses hello and heartbeats.
pub fn command(body: Body, caller: &ClusterId) -> Result<Command, Refusal> {
    match body {
        Body::Hello(_) | Body::Heartbeat(_) => Err(Refusal::invalid(
            "message_id",
            "",
            "is set on a message that is not acknowledged",
            "send hello once, first, and heartbeats with message_id 0",
        )),
        Body::Offer(offer) => {
            let offer = offer::parse(offer, caller)?;
            Ok(Command::AdvertiseOffer(AdvertiseOffer { cluster: caller.clone(), offer }))
        }
        Body::KeyBundle(bundle) => Ok(Command::OfferKeys(OfferKeys { bundle: key_bundle(bundle, caller)? })),
        Body::Envelope(envelope) => Ok(Command::RelayEnvelope(RelayEnvelope { envelope: sealed(envelope, caller)? })),
        Body::EnvelopeAck(ack) => {
            let key = EnvelopeKey {
                to: caller.clone(),
                peering: PeeringId::parse(&ack.peering, "envelope_ack.peering")?,
                epoch: ack.epoch,
                lease: optional_lease(&ack.lease, "envelope_ack.lease")?,
                step: Step::parse(&ack.step)?,
                sequence: ack.sequence,
            };
            Ok(Command::AckEnvelope(AckEnvelope { key }))
        }
        Body::PeeringReport(report) => peering_report(report, caller).map(Command::ReportPeering),
        Body::LeaseReport(report) => lease_report(report, caller).map(Command::ReportLease),
    }
}

fn key_bundle(bundle: v1::KeyBundle, caller: &ClusterId) -> Result<KeyBundle, Refusal> {
    own("key_bundle.cluster", &bundle.cluster, caller)?;
    let side = Side::try_from(v1::Side::try_from(bundle.side).unwrap_or_default()).map_err(|_| {
        Refusal::invalid("key_bundle.side", bundle.side, "is not a side", "use SIDE_ORIGIN (1) or SIDE_DONOR (2)")
    })?;
    printable("key_bundle.identity_key", &bundle.identity_key, MAX_IDENTITY_KEY_BYTES)?;
    if bundle.endpoints.len() > MAX_ENDPOINTS {
        return Err(Refusal::invalid(
            "key_bundle.endpoints",
            bundle.endpoints.len(),
            "candidates are too many",
            format!("send at most {MAX_ENDPOINTS}"),
        ));
    }
    let bundle = KeyBundle {
        peering: PeeringId::parse(&bundle.peering, "key_bundle.peering")?,
        epoch: bundle.epoch,
        cluster: caller.clone(),
        side,
        wireguard_public: bundle.wireguard_public.into(),
        hpke_public: bundle.hpke_public.into(),
        endpoints: bundle.endpoints,
        identity_key: bundle.identity_key,
        voucher: bundle.voucher.into(),
        signature: bundle.signature.into(),
        network: bundle.network.map(network).transpose()?,
    };
    bundle.check()?;
    Ok(bundle)
}

/// Parses a network within size limits; `ClusterNetwork::check` validates the rest.
fn network(network: v1::ClusterNetwork) -> Result<ClusterNetwork, Refusal> {
    let field = |name: &str| format!("key_bundle.network.{name}");
    if network.pod_cidrs.len() > MAX_POD_CIDRS {
        return Err(Refusal::invalid(
            &field("pod_cidrs"),
            network.pod_cidrs.len(),
            "ranges are too many",
            format!("send at most {MAX_POD_CIDRS}"),
        ));
    }
    printable(&field("api_server"), &network.api_server, MAX_ENDPOINT_BYTES)?;
    Ok(ClusterNetwork {
        pod_cidrs: network.pod_cidrs,
        api_server: network.api_server,
        liqo_cluster_id: network.liqo_cluster_id,
        liqo_version: network.liqo_version,
        tun: network.tun,
        liqo_network: network.liqo_network,
    })
}

fn sealed(envelope: v1::Envelope, caller: &ClusterId) -> Result<Envelope, Refusal> {
    own("envelope.from", &envelope.from, caller)?;
    if envelope.ciphertext.len() > MAX_ENVELOPE_BYTES {
        return Err(Refusal::invalid(
            "envelope.ciphertext",
            format!("{} bytes", envelope.ciphertext.len()),
            "is too large",
            format!("send at most {MAX_ENVELOPE_BYTES} bytes"),
        ));
    }
    let envelope = Envelope {
        key: EnvelopeKey {
            to: ClusterId::parse(&envelope.to, "envelope.to")?,
            peering: PeeringId::parse(&envelope.peering, "envelope.peering")?,
            epoch: envelope.epoch,
            lease: optional_lease(&envelope.lease, "envelope.lease")?,
            step: Step::parse(&envelope.step)?,
            sequence: envelope.sequence,
        },
        from: caller.clone(),
        encapsulated_key: envelope.encapsulated_key.into(),
        ciphertext: envelope.ciphertext.into(),
        expires_at: Timestamp(envelope.expires_at_ms),
    };
    envelope.check()?;
    Ok(envelope)
}

fn peering_report(report: v1::PeeringReport, caller: &ClusterId) -> Result<ReportPeering, Refusal> {
    use v1::peering_report::Outcome;
    let outcome =
        required(report.outcome, "peering_report.outcome", "use authenticated, established, failed or closed")?;
    let outcome = match outcome {
        Outcome::Authenticated(_) => PeeringOutcome::Authenticated,
        Outcome::Established(established) => PeeringOutcome::Established { rtt_us: established.rtt_us },
        Outcome::Closed(_) => PeeringOutcome::Closed,
        Outcome::Failed(failed) => {
            printable("peering_report.failed.code", &failed.code, MAX_CODE_BYTES)?;
            printable("peering_report.failed.message", &failed.message, MAX_MESSAGE_BYTES)?;
            PeeringOutcome::Failed { code: failed.code, message: failed.message }
        }
    };
    let peering = PeeringId::parse(&report.peering, "peering_report.peering")?;
    Ok(ReportPeering { cluster: caller.clone(), peering, epoch: report.epoch, outcome })
}

fn lease_report(report: v1::LeaseReport, caller: &ClusterId) -> Result<ReportLease, Refusal> {
    use v1::lease_report::Outcome;
    let remedy = "use ready, failed, clean, checkpointed, idle or in_use";
    let outcome = match required(report.outcome, "lease_report.outcome", remedy)? {
        Outcome::Clean(_) => LeaseOutcome::Clean,
        Outcome::Checkpointed(_) => LeaseOutcome::Checkpointed,
        Outcome::Idle(idle) => LeaseOutcome::Idle { idle_for: Millis(idle.for_ms) },
        Outcome::InUse(_) => LeaseOutcome::InUse,
        Outcome::Ready(ready) => {
            printable("lease_report.ready.namespace", &ready.namespace, MAX_NAME_BYTES)?;
            object_name("lease_report.ready.secret_name", &ready.secret_name)?;
            LeaseOutcome::Ready { namespace: ready.namespace, secret_name: ready.secret_name }
        }
        Outcome::Failed(failed) => {
            printable("lease_report.failed.code", &failed.code, MAX_CODE_BYTES)?;
            printable("lease_report.failed.message", &failed.message, MAX_MESSAGE_BYTES)?;
            let v1::lease_report::Failed { code, message, highest_fencing_token } = failed;
            LeaseOutcome::Failed { code, message, highest_fencing_token }
        }
    };
    let lease = LeaseId::parse(&report.lease, "lease_report.lease")?;
    Ok(ReportLease { cluster: caller.clone(), lease, fencing_token: report.fencing_token, outcome })
}

fn own(field: &str, named: &str, caller: &ClusterId) -> Result<(), Refusal> {
    if named == caller.as_str() {
        return Ok(());
    }
    Err(Refusal::invalid(
        field,
        named,
        "is not the cluster of the caller's certificate",
        format!("speak only for {caller}"),
    ))
}

/// Bounds a name that people read, and that their tools put into the path of a call to Kubernetes.
fn object_name(field: &str, name: &str) -> Result<(), Refusal> {
    if name.is_empty() || is_dns_subdomain(name) {
        return Ok(());
    }
    let remedy = "send a name of Kubernetes: lower-case letters, digits, dots and dashes, at most 253";
    Err(Refusal::invalid(field, name, "is not the name of an object in Kubernetes", remedy))
}

/// Bounds a text that people read in their terminals.
fn printable(field: &str, text: &str, max: usize) -> Result<(), Refusal> {
    if text.len() > max {
        return Err(Refusal::invalid(field, text, "is too long", format!("send at most {max} bytes")));
    }
    if !is_printable(text) {
        let remedy = "send one line of visible characters";
        return Err(Refusal::invalid(field, text, "has control or invisible characters", remedy));
    }
    Ok(())
}

fn optional_lease(text: &str, field: &str) -> Result<Option<LeaseId>, Refusal> {
    if text.is_empty() { Ok(None) } else { Ok(Some(LeaseId::parse(text, field)?)) }
}

/// Desired state of `cluster`, without its leases.
#[must_use]
pub fn desired_without_leases(state: &State, cluster: &ClusterId) -> v1::DesiredState {
    v1::DesiredState {
        revision: state.revision,
        log_time_ms: state.log_time.0,
        leases: Vec::new(),
        peerings: state.peerings_of(cluster).map(|(id, held)| directive(state, cluster, id, held)).collect(),
        envelopes: state.envelopes_for(cluster).map(envelope_to_proto).collect(),
        policy_commit: state.provenance.commit.clone().unwrap_or_default(),
    }
}

fn directive(state: &State, cluster: &ClusterId, id: PeeringId, held: &Peering) -> v1::PeeringDirective {
    let other = if held.origin == *cluster { &held.donor } else { &held.origin };
    let member = state.clusters.get(other);
    let institution = member.map_or_else(String::new, |member| member.institution.to_string());
    let keys = state
        .policy
        .as_ref()
        .and_then(|record| record.bundle.institutions.get(&institution))
        .map(|document| document.spec.signing_keys.iter().map(crate::api::convert::ed25519_text).collect())
        .unwrap_or_default();
    v1::PeeringDirective {
        peering: Some(peering::to_proto(id, held)),
        origin_keys: held.origin_keys.as_ref().map(key_bundle_to_proto),
        donor_keys: held.donor_keys.as_ref().map(key_bundle_to_proto),
        peer_identity_key: member.map_or_else(String::new, |member| member.identity_key.clone()),
        peer_institution: institution,
        peer_institution_keys: keys,
        reported_established: held.side_of(cluster).is_some_and(|side| held.established.contains(&side)),
    }
}

fn key_bundle_to_proto(bundle: &KeyBundle) -> v1::KeyBundle {
    v1::KeyBundle {
        peering: bundle.peering.to_string(),
        epoch: bundle.epoch,
        cluster: bundle.cluster.to_string(),
        side: v1::Side::from(bundle.side).into(),
        wireguard_public: bundle.wireguard_public.0.clone(),
        hpke_public: bundle.hpke_public.0.clone(),
        endpoints: bundle.endpoints.clone(),
        identity_key: bundle.identity_key.clone(),
        voucher: bundle.voucher.0.clone(),
        signature: bundle.signature.0.clone(),
        network: bundle.network.as_ref().map(network_to_proto),
    }
}

fn network_to_proto(network: &ClusterNetwork) -> v1::ClusterNetwork {
    v1::ClusterNetwork {
        pod_cidrs: network.pod_cidrs.clone(),
        api_server: network.api_server.clone(),
        liqo_cluster_id: network.liqo_cluster_id.clone(),
        liqo_version: network.liqo_version.clone(),
        tun: network.tun,
        liqo_network: network.liqo_network,
    }
}

fn envelope_to_proto(envelope: &Envelope) -> v1::Envelope {
    v1::Envelope {
        peering: envelope.key.peering.to_string(),
        epoch: envelope.key.epoch,
        lease: envelope.key.lease.map_or_else(String::new, |lease| lease.to_string()),
        step: envelope.key.step.as_str().to_owned(),
        sequence: envelope.key.sequence,
        from: envelope.from.to_string(),
        to: envelope.key.to.to_string(),
        encapsulated_key: envelope.encapsulated_key.0.clone(),
        ciphertext: envelope.ciphertext.0.clone(),
        expires_at_ms: envelope.expires_at.0,
    }
}

#[cfg(test)]
mod tests {
    use comity_core::limits::{HPKE_ENCAPSULATED_BYTES, HPKE_PUBLIC_BYTES};

    use super::*;

    fn refused(body: Body) -> Refusal {
        let caller = ClusterId::parse("campus", "cluster").expect("a label");
        command(body, &caller).expect_err("it is bad")
    }

    fn keys() -> v1::KeyBundle {
        v1::KeyBundle {
            peering: "peer-1".into(),
            epoch: 1,
            cluster: "campus".into(),
            side: 1,
            wireguard_public: vec![1; 32],
            hpke_public: vec![2; HPKE_PUBLIC_BYTES],
            identity_key: "ed25519:x".into(),
            signature: vec![3; 64],
            network: Some(v1::ClusterNetwork {
                pod_cidrs: vec!["10.44.0.0/16".into(), "10.45.0.0/16".into()],
                api_server: "10.0.0.7:6443".into(),
                liqo_cluster_id: "campus".into(),
                liqo_version: "v1.2.0".into(),
                tun: true,
                liqo_network: true,
            }),
            ..Default::default()
        }
    }

    #[test]
    fn a_bundle_goes_on_as_it_came_because_it_is_signed() {
        let caller = ClusterId::parse("campus", "cluster").expect("a label");
        for bundle in [keys(), v1::KeyBundle { network: None, ..keys() }] {
            let parsed = key_bundle(bundle.clone(), &caller).expect("it is good");
            assert_eq!(key_bundle_to_proto(&parsed), bundle);
        }
    }

    #[test]
    fn ansi_escapes_in_failure_message() {
        let lease = |outcome| {
            Body::LeaseReport(v1::LeaseReport { lease: "lease-1".into(), fencing_token: 1, outcome: Some(outcome) })
        };
        let peering = |code: &str, message: &str| {
            let failed = v1::peering_report::Failed { code: code.into(), message: message.into() };
            let outcome = Some(v1::peering_report::Outcome::Failed(failed));
            Body::PeeringReport(v1::PeeringReport { peering: "peer-1".into(), epoch: 1, outcome })
        };
        let failed = |code: &str, message: &str| {
            lease(v1::lease_report::Outcome::Failed(v1::lease_report::Failed {
                code: code.into(),
                message: message.into(),
                ..Default::default()
            }))
        };
        let ready = |namespace: &str, secret_name: &str| {
            lease(v1::lease_report::Outcome::Ready(v1::lease_report::Ready {
                namespace: namespace.into(),
                secret_name: secret_name.into(),
            }))
        };
        let caller = ClusterId::parse("campus", "cluster").expect("a label");
        for evil in [
            "\u{1b}]0;owned\u{7}",
            "\u{9b}2J",
            "two\nlines",
            "\u{202e}nimda",
            "\r",
            "\u{7f}",
            "ad\u{200b}min",
            "\u{e0041}",
        ] {
            for (body, field) in [
                (failed("quota", evil), "lease_report.failed.message"),
                (failed(evil, "no"), "lease_report.failed.code"),
                (peering("keys", evil), "peering_report.failed.message"),
                (peering(evil, "no"), "peering_report.failed.code"),
                (ready(evil, "name"), "lease_report.ready.namespace"),
                (ready("name", evil), "lease_report.ready.secret_name"),
                (Body::KeyBundle(v1::KeyBundle { identity_key: evil.into(), ..keys() }), "key_bundle.identity_key"),
            ] {
                let refusal = refused(body);
                assert_eq!(refusal.field, field);
                assert!(is_printable(&refusal.to_string()) && is_printable(&refusal.value), "{refusal:?}");
            }
        }
        assert!(command(failed("quota", "the quota of 東京 is used up"), &caller).is_ok());
    }

    #[test]
    fn origin_names_a_path_as_its_secret() {
        let ready = |secret_name: &str| {
            let outcome = v1::lease_report::Ready { secret_name: secret_name.into(), ..Default::default() };
            let outcome = Some(v1::lease_report::Outcome::Ready(outcome));
            Body::LeaseReport(v1::LeaseReport { lease: "lease-1".into(), fencing_token: 1, outcome })
        };
        for evil in ["../../x", "/var/lib/comity/lease-1.kubeconfig", "a/b", "Secret", "a b", "..", "-"] {
            assert_eq!(refused(ready(evil)).field, "lease_report.ready.secret_name", "{evil}");
        }
        let caller = ClusterId::parse("campus", "cluster").expect("a label");
        for good in ["", "comity-lease-1", "lease-1.kubeconfig"] {
            assert!(command(ready(good), &caller).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_key_of_x25519_alone_is_refused() {
        let refusal = refused(Body::KeyBundle(v1::KeyBundle { hpke_public: vec![2; 32], ..keys() }));
        assert_eq!((refusal.field.as_str(), refusal.remedy.as_str()), ("key_bundle.hpke_public", "send 1216 bytes"));
    }

    #[test]
    fn networks_that_cannot_be_are_refused() {
        let with = |change: fn(&mut v1::ClusterNetwork)| {
            let mut bundle = keys();
            bundle.network.as_mut().map(change).expect("it has one");
            Body::KeyBundle(bundle)
        };
        for (body, field) in [
            (with(|n| n.pod_cidrs = vec!["10.0.0.0/24".into(); 9]), "key_bundle.network.pod_cidrs"),
            (with(|n| n.pod_cidrs.push("10.44.1.0/24".into())), "key_bundle.network.pod_cidrs[2]"),
            (with(|n| n.api_server = "x".repeat(263)), "key_bundle.network.api_server"),
            (with(|n| n.api_server = "10.0.0.7".into()), "key_bundle.network.api_server"),
            (with(|n| n.liqo_cluster_id = "No!".into()), "key_bundle.network.liqo_cluster_id"),
            (with(|n| n.liqo_version = "\n".into()), "key_bundle.network.liqo_version"),
        ] {
            let refusal = refused(body);
            assert_eq!(refusal.field, field, "{refusal}");
            assert!(!refusal.remedy.is_empty());
        }
    }

    #[test]
    fn reports_of_others_and_unknown_values_are_refused() {
        let keys = v1::KeyBundle { peering: "peer-1".into(), cluster: "campus".into(), side: 1, ..Default::default() };
        let envelope = v1::Envelope {
            from: "campus".into(),
            to: "centre".into(),
            peering: "peer-1".into(),
            step: "psk".into(),
            sequence: 1,
            encapsulated_key: vec![0; HPKE_ENCAPSULATED_BYTES],
            ciphertext: vec![0; 64],
            ..Default::default()
        };
        let long = v1::lease_report::Failed { code: "x".into(), message: "y".repeat(513), highest_fencing_token: 0 };
        for (body, field) in [
            (Body::KeyBundle(v1::KeyBundle { cluster: "centre".into(), ..keys.clone() }), "key_bundle.cluster"),
            (Body::KeyBundle(v1::KeyBundle { side: 0, ..keys.clone() }), "key_bundle.side"),
            (Body::KeyBundle(v1::KeyBundle { side: 7, ..keys.clone() }), "key_bundle.side"),
            (
                Body::KeyBundle(v1::KeyBundle { endpoints: vec!["a:1".into(); 9], ..keys.clone() }),
                "key_bundle.endpoints",
            ),
            (Body::KeyBundle(keys), "key_bundle.wireguard_public"),
            (Body::Envelope(v1::Envelope { from: "centre".into(), ..envelope.clone() }), "envelope.from"),
            (Body::Envelope(v1::Envelope { step: "password".into(), ..envelope.clone() }), "envelope.step"),
            (
                Body::Envelope(v1::Envelope { encapsulated_key: vec![0; 32], ..envelope.clone() }),
                "envelope.encapsulated_key",
            ),
            (
                Body::Envelope(v1::Envelope { ciphertext: vec![0; MAX_ENVELOPE_BYTES + 1], ..envelope }),
                "envelope.ciphertext",
            ),
            (
                Body::PeeringReport(v1::PeeringReport { peering: "peer-1".into(), ..Default::default() }),
                "peering_report.outcome",
            ),
            (
                Body::LeaseReport(v1::LeaseReport { lease: "lease-1".into(), ..Default::default() }),
                "lease_report.outcome",
            ),
            (
                Body::LeaseReport(v1::LeaseReport {
                    lease: "lease-1".into(),
                    outcome: Some(v1::lease_report::Outcome::Failed(long)),
                    ..Default::default()
                }),
                "lease_report.failed.message",
            ),
            (Body::EnvelopeAck(v1::EnvelopeAck { peering: "7".into(), ..Default::default() }), "envelope_ack.peering"),
        ] {
            let refusal = refused(body);
            assert_eq!(refusal.field, field, "{refusal}");
            assert!(!refusal.remedy.is_empty());
        }
    }
}
