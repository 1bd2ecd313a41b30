//! From request to active lease and back, as the two agents drive it.

use comity_core::command::{
    AckEnvelope, CancelRequest, Expire, JoinCluster, LeaseOutcome, MarkClusters, OfferKeys, PeeringOutcome,
    RelayEnvelope, ReleaseLease, RenewLease, ReportLease, ReportPeering,
};
use comity_core::demand::{RequestSpec, Share};
use comity_core::envelope::{Envelope, EnvelopeKey, Step};
use comity_core::explain::explain_waiting;
use comity_core::keys::KeyBundle;
use comity_core::limits::{HPKE_ENCAPSULATED_BYTES, HPKE_PUBLIC_BYTES};
use comity_core::network::ClusterNetwork;
use comity_core::refusal::Code;
use comity_core::{Command, Millis, Timestamp};
use comity_policy::show_duration;
use comity_types::{
    Delivery, EndReason, LeaseId, LeaseState, PeeringId, PeeringState, RequestId, RequestState, Side, namespace_name,
};

use super::federation::{Federation, blob, cluster, spec};

pub(crate) fn keys(peering: PeeringId, epoch: u32, name: &str, side: Side) -> KeyBundle {
    KeyBundle {
        peering,
        epoch,
        cluster: cluster(name),
        side,
        wireguard_public: blob(32, 1),
        hpke_public: blob(HPKE_PUBLIC_BYTES, 2),
        endpoints: vec!["127.0.0.1:51871".into()],
        identity_key: format!("ed25519:{name}"),
        voucher: blob(0, 0),
        signature: blob(64, 3),
        network: None,
    }
}

/// Sender and receiver of an envelope.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'n> {
    pub(crate) from: &'n str,
    pub(crate) to: &'n str,
}

const NORTH_TO_WEST: Ends<'_> = Ends { from: "north", to: "west" };
const WEST_TO_NORTH: Ends<'_> = Ends { from: "west", to: "north" };

pub(crate) fn envelope(peering: PeeringId, epoch: u32, ends: Ends<'_>, lease: Option<LeaseId>, step: Step) -> Envelope {
    Envelope {
        key: EnvelopeKey { to: cluster(ends.to), peering, epoch, lease, step, sequence: 1 },
        from: cluster(ends.from),
        encapsulated_key: blob(HPKE_ENCAPSULATED_BYTES, 4),
        ciphertext: blob(100, 5),
        expires_at: Timestamp(u64::MAX),
    }
}

impl Federation {
    pub(crate) fn report_peering(&mut self, name: &str, peering: PeeringId, epoch: u32, outcome: PeeringOutcome) {
        self.ok(Command::ReportPeering(ReportPeering { cluster: cluster(name), peering, epoch, outcome }));
    }

    pub(crate) fn report_lease(&mut self, name: &str, lease: LeaseId, outcome: LeaseOutcome) {
        let fencing_token = self.state.leases[&lease].fencing_token;
        self.ok(Command::ReportLease(ReportLease { cluster: cluster(name), lease, fencing_token, outcome }));
    }

    /// A request for three GPUs, placed at north while south, where it fits too, is silent.
    pub(crate) fn placed() -> (Self, RequestId, LeaseId, PeeringId) {
        let mut federation = Self::ready();
        let south = || vec![cluster("south")];
        federation.ok(Command::MarkClusters(MarkClusters { heard: Vec::new(), silent: south() }));
        let mut wanted = spec(3, Share::Whole, "big");
        wanted.allow_donors = vec![cluster("north"), cluster("south")];
        let request = federation.submit(wanted);
        let lease = federation.place()[0];
        federation.ok(Command::MarkClusters(MarkClusters { heard: south(), silent: Vec::new() }));
        let peering = federation.state.leases[&lease].peering;
        (federation, request, lease, peering)
    }

    pub(crate) fn shake_hands(&mut self, peering: PeeringId, epoch: u32) {
        self.shake_hands_with("north", peering, epoch, 410);
    }

    /// Completes the handshake with a donor at a round trip of `rtt_us` microseconds.
    pub(crate) fn shake_hands_with(&mut self, donor: &str, peering: PeeringId, epoch: u32, rtt_us: u64) {
        for (name, side) in [("west", Side::Origin), (donor, Side::Donor)] {
            self.ok(Command::OfferKeys(OfferKeys { bundle: keys(peering, epoch, name, side) }));
        }
        assert_eq!(self.state.peerings[&peering].state, PeeringState::Authenticating);
        let (out, back) = (Ends { from: donor, to: "west" }, Ends { from: "west", to: donor });
        for (ends, step) in [(out, Step::Psk), (back, Step::Proof)] {
            let envelope = envelope(peering, epoch, ends, None, step);
            let key = envelope.key.clone();
            self.ok(Command::RelayEnvelope(RelayEnvelope { envelope }));
            assert_eq!(self.state.envelopes_for(&key.to).count(), 1);
            self.ok(Command::AckEnvelope(AckEnvelope { key: key.clone() }));
            assert_eq!(self.state.envelopes_for(&key.to).count(), 0);
        }
        self.report_peering(donor, peering, epoch, PeeringOutcome::Authenticated);
        self.report_peering(donor, peering, epoch, PeeringOutcome::Established { rtt_us: 0 });
        assert_eq!(self.state.peerings[&peering].state, PeeringState::Establishing);
        self.report_peering("west", peering, epoch, PeeringOutcome::Established { rtt_us });
        assert_eq!(self.state.peerings[&peering].state, PeeringState::Established);
    }

    pub(crate) fn activate(&mut self, lease: LeaseId) {
        let peering = self.state.leases[&lease].peering;
        let envelope =
            envelope(peering, self.state.peerings[&peering].epoch, NORTH_TO_WEST, Some(lease), Step::Credential);
        self.ok(Command::RelayEnvelope(RelayEnvelope { envelope: envelope.clone() }));
        let ready = |namespace: &str, secret: &str| LeaseOutcome::Ready {
            namespace: namespace.into(),
            secret_name: secret.into(),
        };
        let namespace = match self.state.leases[&lease].delivery {
            Delivery::Namespace => namespace_name(lease),
            Delivery::VirtualNode => "liqo-tenant-west".to_owned(),
        };
        self.report_lease("north", lease, ready(&namespace, ""));
        assert_eq!(self.state.leases[&lease].state, LeaseState::Connecting);
        self.ok(Command::AckEnvelope(AckEnvelope { key: envelope.key }));
        self.report_lease("west", lease, ready("", "comity-lease-1"));
        assert_eq!(self.state.leases[&lease].state, LeaseState::Active);
    }
}

#[test]
fn a_lease_whose_donor_fell_silent_before_it_began_is_suspect() {
    let (mut federation, _, lease, peering) = Federation::placed();
    federation.shake_hands(peering, 1);
    let envelope = envelope(peering, 1, NORTH_TO_WEST, Some(lease), Step::Credential);
    federation.ok(Command::RelayEnvelope(RelayEnvelope { envelope: envelope.clone() }));
    let ready = || LeaseOutcome::Ready { namespace: namespace_name(lease), secret_name: "s".into() };
    federation.report_lease("north", lease, ready());
    federation.ok(Command::AckEnvelope(AckEnvelope { key: envelope.key }));
    federation.ok(Command::MarkClusters(MarkClusters { heard: Vec::new(), silent: vec![cluster("north")] }));
    federation.report_lease("west", lease, ready());
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Suspect, "it would never be given up");
    assert_eq!(federation.state.leases[&lease].message, "no word from north");
    federation.ok(Command::MarkClusters(MarkClusters { heard: vec![cluster("north")], silent: Vec::new() }));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
}

#[test]
fn a_request_becomes_active_is_released_and_leaves_nothing() {
    let (mut federation, request, lease, peering) = Federation::placed();
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Placed);
    federation.shake_hands(peering, 1);
    federation.activate(lease);
    let active = &federation.state.leases[&lease];
    assert_eq!(active.expires_at, active.active_at.map(|at| at.after(Millis::from_mins(30))));

    federation.ok(Command::ReleaseLease(ReleaseLease { lease }));
    federation.ok(Command::ReleaseLease(ReleaseLease { lease }));
    assert_eq!(federation.state.requests[&request].state, RequestState::Completed);
    assert_eq!(federation.state.occupancy().lent_milli(&cluster("north")), 3_000, "lent until the donor is clean");
    federation.report_lease("north", lease, LeaseOutcome::Clean);
    assert_eq!(federation.state.occupancy().lent_milli(&cluster("north")), 0);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending);
    federation.report_lease("west", lease, LeaseOutcome::Clean);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ended);

    federation.now += 10 * 60 * 1_000;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.peerings[&peering].state, PeeringState::Draining);
    federation.report_peering("west", peering, 1, PeeringOutcome::Closed);
    federation.report_peering("north", peering, 1, PeeringOutcome::Closed);
    assert_eq!(federation.state.peerings[&peering].state, PeeringState::Closed);
    assert!(federation.state.envelopes.is_empty());
}

#[test]
fn a_second_lease_uses_the_warm_peering() {
    let (mut federation, _, lease, peering) = Federation::placed();
    federation.shake_hands(peering, 1);
    federation.activate(lease);
    let mut again = spec(1, Share::Whole, "big");
    again.allow_donors = vec![cluster("north")];
    federation.submit(again);
    let second = federation.place()[0];
    assert_eq!(federation.state.leases[&second].peering, peering);
    assert_eq!(federation.state.leases[&second].state, LeaseState::Connecting);
    assert!(federation.state.leases[&second].fencing_token > federation.state.leases[&lease].fencing_token);
    federation.activate(second);
}

#[test]
fn a_handshake_that_stalls_is_tried_again_with_fresh_keys_and_old_messages_are_void() {
    let (mut federation, _, lease, peering) = Federation::placed();
    federation.ok(Command::OfferKeys(OfferKeys { bundle: keys(peering, 1, "west", Side::Origin) }));
    federation.now += 20_000;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.peerings[&peering].state, PeeringState::Failed);
    federation.now += 500;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.peerings[&peering].epoch, 2);
    let refusal = federation.refused(Command::OfferKeys(OfferKeys { bundle: keys(peering, 1, "north", Side::Donor) }));
    assert_eq!(refusal.code, Code::StaleEpoch);
    federation.shake_hands(peering, 2);
    federation.activate(lease);
}

#[test]
fn keys_cannot_be_replaced_within_an_epoch() {
    let (mut federation, _, _, peering) = Federation::placed();
    let bundle = keys(peering, 1, "north", Side::Donor);
    federation.ok(Command::OfferKeys(OfferKeys { bundle: bundle.clone() }));
    federation.ok(Command::OfferKeys(OfferKeys { bundle: bundle.clone() }));
    let swapped = KeyBundle { wireguard_public: blob(32, 9), ..bundle };
    assert_eq!(federation.refused(Command::OfferKeys(OfferKeys { bundle: swapped })).code, Code::WrongState);
}

#[test]
fn a_request_whose_hold_expires_goes_to_another_donor() {
    let (mut federation, request, lease, _) = Federation::placed();
    federation.now += 120_000;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::HoldExpired));
    assert_eq!(federation.state.requests[&request].state, RequestState::Queued);
    let second = federation.place()[0];
    assert_eq!(federation.state.leases[&second].placement.donor, cluster("south"));
    assert_eq!(federation.state.requests[&request].attempts, 2);
}

pub(crate) fn refused(message: &str, highest_fencing_token: u64) -> LeaseOutcome {
    LeaseOutcome::Failed { code: "local-policy".into(), message: message.into(), highest_fencing_token }
}

#[test]
fn a_donor_that_refuses_is_not_asked_again_while_another_can_serve() {
    let (mut federation, request, lease, _) = Federation::placed();
    federation.report_lease("north", lease, refused("lends nothing today", 0));
    assert_eq!(federation.state.requests[&request].state, RequestState::Queued);
    assert!(federation.state.requests[&request].message.contains("lends nothing today"));
    let second = federation.place()[0];
    assert_eq!(federation.state.leases[&second].placement.donor, cluster("south"));
}

#[test]
fn the_only_donor_that_can_serve_has_time_before_it_is_asked_again() {
    let mut federation = Federation::ready();
    let request =
        federation.submit(RequestSpec { deny_donors: vec![cluster("south")], ..spec(1, Share::Whole, "big") });
    let refuse = |federation: &mut Federation| {
        let lease = federation.place()[0];
        federation.report_lease("north", lease, refused("lends nothing today", 0));
    };
    refuse(&mut federation);
    refuse(&mut federation);
    for pause in [30_000, 60_000, 120_000] {
        assert_eq!(federation.state.requests[&request].state, RequestState::Queued);
        assert!(federation.state.requests[&request].message.contains("; it is tried again in "));
        let waiting = explain_waiting(&federation.state, request).unwrap();
        let in_pause = format!("it is tried again in {}; ", show_duration(pause));
        assert!(waiting.explanation.summary.starts_with(&in_pause), "{}", waiting.explanation.summary);
        federation.now += pause - 1_000;
        federation.ok(Command::Expire(Expire {}));
        assert!(federation.place().is_empty(), "before {pause} ms are over");
        federation.now += 1_000;
        federation.ok(Command::Expire(Expire {}));
        refuse(&mut federation);
    }
    assert_eq!(federation.state.requests[&request].state, RequestState::Failed);
}

#[test]
fn a_latest_start_is_kept_in_the_pause_before_a_retry() {
    let mut federation = Federation::ready();
    let start_by = Some(Timestamp(federation.now + 10_000));
    let deny_donors = vec![cluster("south")];
    let request = federation.submit(RequestSpec { deny_donors, start_by, ..spec(1, Share::Whole, "big") });
    for _ in 0..2 {
        let lease = federation.place()[0];
        federation.report_lease("north", lease, refused("lends nothing today", 0));
    }
    federation.now += 10_000;
    federation.ok(Command::Expire(Expire {}));
    let found = &federation.state.requests[&request];
    assert_eq!((found.state, found.retry_at), (RequestState::Failed, None));
    assert!(found.message.starts_with("not placed by its latest start"), "{}", found.message);
}

#[test]
fn silence_makes_a_lease_suspect_and_tears_nothing_down() {
    let (mut federation, _, lease, peering) = Federation::placed();
    federation.shake_hands(peering, 1);
    federation.activate(lease);
    let north = || vec![cluster("north")];
    federation.ok(Command::MarkClusters(MarkClusters { heard: Vec::new(), silent: north() }));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Suspect);
    federation.ok(Command::MarkClusters(MarkClusters { heard: north(), silent: Vec::new() }));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
}

#[test]
fn a_term_ends_unless_it_is_renewed() {
    let (mut federation, request, lease, peering) = Federation::placed();
    federation.shake_hands(peering, 1);
    federation.activate(lease);
    federation.now += 29 * 60 * 1_000;
    federation.ok(Command::RenewLease(RenewLease { lease, duration: Millis(0), may_shorten: false }));
    federation.now += 29 * 60 * 1_000;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
    federation.now += 2 * 60 * 1_000;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::Expired));
    assert_eq!(federation.state.requests[&request].state, RequestState::Completed);
    let refusal =
        federation.refused(Command::RenewLease(RenewLease { lease, duration: Millis(0), may_shorten: false }));
    assert_eq!(refusal.code, Code::WrongState);
}

#[test]
fn a_renewal_shortens_a_lease_only_if_it_says_so() {
    let (mut federation, _, lease, peering) = Federation::placed();
    federation.shake_hands(peering, 1);
    federation.activate(lease);
    let end = federation.state.leases[&lease].expires_at.unwrap();
    let renewal = |may_shorten| Command::RenewLease(RenewLease { lease, duration: Millis(10_000), may_shorten });
    let refusal = federation.refused(renewal(false));
    let sooner = federation.state.log_time.after(Millis(10_000));
    assert_eq!(refusal.reason, format!("{lease} would end at {} instead of {}", sooner.to_second(), end.to_second()));
    assert_eq!((refusal.code, refusal.field.as_str()), (Code::WrongState, "may_shorten"));
    assert!(refusal.remedy.contains("may_shorten"), "{}", refusal.remedy);
    assert_eq!(federation.state.leases[&lease].expires_at, Some(end));
    federation.ok(renewal(true));
    assert!(federation.state.leases[&lease].expires_at.unwrap() < end);
}

#[test]
fn cancelling_ends_the_lease_and_frees_the_capacity() {
    let (mut federation, request, lease, _) = Federation::placed();
    federation.ok(Command::CancelRequest(CancelRequest { request }));
    assert_eq!(federation.state.requests[&request].state, RequestState::Cancelled);
    for name in ["west", "north"] {
        federation.report_lease(name, lease, LeaseOutcome::Clean);
    }
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ended);
    assert_eq!(federation.state.live_leases().count(), 0);
}

#[test]
fn a_stranger_and_a_stale_fencing_token_are_refused() {
    let (mut federation, _, lease, peering) = Federation::placed();
    let report = |name: &str, fencing_token| {
        Command::ReportLease(ReportLease { cluster: cluster(name), lease, fencing_token, outcome: LeaseOutcome::Clean })
    };
    assert_eq!(federation.refused(report("south", 1)).code, Code::NotFound);
    assert_eq!(federation.refused(report("north", 77)).code, Code::StaleFencingToken);
    assert_eq!(federation.refused(report("north", 1)).code, Code::WrongState);
    let stranger = keys(peering, 1, "south", Side::Donor);
    assert_eq!(federation.refused(Command::OfferKeys(OfferKeys { bundle: stranger })).code, Code::NotFound);
    let early = envelope(peering, 1, NORTH_TO_WEST, None, Step::Psk);
    assert_eq!(federation.refused(Command::RelayEnvelope(RelayEnvelope { envelope: early })).code, Code::WrongState);
}

#[test]
fn a_join_token_is_good_once() {
    let mut federation = Federation::with_policy();
    federation.join("west");
    let join = |secret: &str| {
        Command::JoinCluster(JoinCluster {
            cluster: cluster("west"),
            secret_sha256: format!("{secret:0>64}"),
            identity_key: "ed25519:other".into(),
            certificate_not_after: Timestamp(0),
        })
    };
    assert_eq!(federation.refused(join("west")).code, Code::InvalidToken);
    assert_eq!(federation.refused(join("unheard-of")).code, Code::InvalidToken);
}

#[test]
fn liqo_envelopes_are_relayed_once_both_key_bundles_are_there() {
    let (mut federation, _, lease, peering) = Federation::placed();
    let relay = |ends, lease, step, sequence| {
        let mut envelope = envelope(peering, 1, ends, lease, step);
        envelope.key.sequence = sequence;
        Command::RelayEnvelope(RelayEnvelope { envelope })
    };
    let (out, back) = (NORTH_TO_WEST, WEST_TO_NORTH);
    assert_eq!(federation.refused(relay(out, None, Step::LiqoChallenge, 1)).code, Code::WrongState);
    for (name, side) in [("west", Side::Origin), ("north", Side::Donor)] {
        federation.ok(Command::OfferKeys(OfferKeys { bundle: keys(peering, 1, name, side) }));
    }
    // Each step has one direction, and belongs to the peering and not to a lease.
    for (ends, step) in [
        (back, Step::LiqoChallenge),
        (out, Step::LiqoTenant),
        (back, Step::LiqoIdentity),
        (back, Step::LiqoServer),
        (out, Step::LiqoClient),
    ] {
        assert_eq!(federation.refused(relay(ends, None, step, 1)).field, "envelope.to", "{step:?}");
    }
    let of_a_lease = federation.refused(relay(out, Some(lease), Step::LiqoChallenge, 1));
    assert_eq!((of_a_lease.field.as_str(), of_a_lease.value), ("envelope.lease", lease.to_string()));

    for (ends, step) in [
        (out, Step::LiqoChallenge),
        (back, Step::LiqoTenant),
        (out, Step::LiqoIdentity),
        (out, Step::LiqoServer),
        (back, Step::LiqoClient),
    ] {
        federation.ok(relay(ends, None, step, 1));
        federation.ok(relay(ends, None, step, 3));
        federation.ok(relay(ends, None, step, 2));
        let receiver = cluster(ends.to);
        let held: Vec<EnvelopeKey> = federation.state.envelopes_for(&receiver).map(|held| held.key.clone()).collect();
        assert_eq!(held.iter().map(|key| (key.step, key.sequence)).collect::<Vec<_>>(), [(step, 3)]);
        federation.ok(Command::AckEnvelope(AckEnvelope { key: held[0].clone() }));
        assert!(federation.state.envelopes.is_empty());
    }
    // Unread envelopes expire after a day; a failed handshake deletes its own at once.
    federation.ok(relay(out, None, Step::LiqoChallenge, 4));
    let kept = federation.state.envelopes.values().next().unwrap().expires_at.0;
    assert_eq!(kept, federation.now + 24 * 3_600 * 1_000);
    federation.report_peering("west", peering, 1, PeeringOutcome::Failed { code: "x".into(), message: "y".into() });
    assert!(federation.state.envelopes.is_empty());
}

#[test]
fn a_key_bundle_with_an_invalid_network_is_refused() {
    let (mut federation, _, _, peering) = Federation::placed();
    let network = ClusterNetwork { pod_cidrs: vec!["10.44.0.0/16".into()], tun: true, ..ClusterNetwork::default() };
    let bundle = KeyBundle { network: Some(network.clone()), ..keys(peering, 1, "north", Side::Donor) };
    let mut bad = bundle.clone();
    bad.network.as_mut().unwrap().pod_cidrs = vec!["0.0.0.0/0".into()];
    let refusal = federation.refused(Command::OfferKeys(OfferKeys { bundle: bad }));
    assert_eq!(refusal.field, "key_bundle.network.pod_cidrs[0]");
    federation.ok(Command::OfferKeys(OfferKeys { bundle: bundle.clone() }));
    // A different network makes a different bundle, and a side offers only one in an epoch.
    let other = KeyBundle { network: Some(ClusterNetwork { tun: false, ..network }), ..bundle };
    assert_eq!(federation.refused(Command::OfferKeys(OfferKeys { bundle: other })).code, Code::WrongState);
}

#[test]
fn stranger_acks_envelope() {
    let (mut federation, _, lease, peering) = Federation::placed();
    federation.shake_hands(peering, 1);
    let waiting = envelope(peering, 1, NORTH_TO_WEST, Some(lease), Step::Credential);
    federation.ok(Command::RelayEnvelope(RelayEnvelope { envelope: waiting.clone() }));
    let ack = |name: &str, peering| {
        Command::AckEnvelope(AckEnvelope { key: EnvelopeKey { to: cluster(name), peering, ..waiting.key.clone() } })
    };
    let (held, none) = (federation.refused(ack("south", peering)), federation.refused(ack("south", PeeringId(99))));
    assert_eq!((held.code, none.code), (Code::NotFound, Code::NotFound));
    assert_eq!(held.reason.replace("peer-1", "peer-99"), none.reason, "it learns nothing of other peerings");
    // The sender is a side of the peering, but the envelope is not its own.
    let before = federation.state.revision;
    federation.ok(ack("north", peering));
    assert_eq!((federation.state.revision, federation.state.envelopes.len()), (before, 1));
    federation.ok(ack("west", peering));
    assert!(federation.state.envelopes.is_empty());
    federation.ok(ack("west", peering));
}

#[test]
fn donor_renames_active_lease_namespace() {
    let (mut federation, _, lease, peering) = Federation::placed();
    federation.shake_hands(peering, 1);
    let ready = |federation: &Federation, lease: LeaseId, namespace: &str| {
        Command::ReportLease(ReportLease {
            cluster: cluster("north"),
            lease,
            fencing_token: federation.state.leases[&lease].fencing_token,
            outcome: LeaseOutcome::Ready { namespace: namespace.into(), secret_name: String::new() },
        })
    };
    let others = ["kube-system", "comity-lease-99", "liqo-tenant-west", "comity-system", ""];
    for name in others {
        let refusal = federation.refused(ready(&federation, lease, name));
        assert_eq!((refusal.code, refusal.field.as_str()), (Code::InvalidField, "lease_report.ready.namespace"));
        assert_eq!(refusal.remedy, "report comity-lease-1");
    }
    federation.activate(lease);
    for name in others {
        let refusal = federation.refused(ready(&federation, lease, name));
        assert_eq!(refusal.remedy, "report comity-lease-1 again", "{refusal}");
        assert_eq!(federation.state.leases[&lease].donor_namespace, "comity-lease-1");
    }
    federation.ok(ready(&federation, lease, "comity-lease-1"));

    let mut node = spec(1, Share::Whole, "big");
    (node.delivery, node.target_namespace) = (Delivery::VirtualNode, "lab".into());
    node.allow_donors = vec![cluster("north")];
    federation.submit(node);
    let second = federation.place()[0];
    for name in ["kube-system", "comity-lease-2", "liqo-tenant-", "liqo-tenant-a.b", "liqo-tenant-\u{e9}"] {
        let refusal = federation.refused(ready(&federation, second, name));
        assert_eq!(refusal.remedy, "report liqo-tenant-ID", "{refusal}");
    }
    federation.activate(second);
    federation.refused(ready(&federation, second, "liqo-tenant-south"));
    assert_eq!(federation.state.leases[&second].donor_namespace, "liqo-tenant-west");
}

#[test]
fn a_virtual_nodes_namespace_is_that_of_the_origins_liqo() {
    let mut federation = Federation::ready();
    let mut node = spec(1, Share::Whole, "big");
    (node.delivery, node.target_namespace) = (Delivery::VirtualNode, "lab".into());
    node.allow_donors = vec![cluster("north")];
    federation.submit(node);
    let lease = federation.place()[0];
    let peering = federation.state.leases[&lease].peering;
    let mut bundle = keys(peering, 1, "west", Side::Origin);
    bundle.network = Some(ClusterNetwork {
        pod_cidrs: vec!["10.44.0.0/16".into()],
        api_server: "10.0.0.7:6443".into(),
        liqo_cluster_id: "campus-west".into(),
        liqo_version: "v1.2.0".into(),
        tun: true,
        liqo_network: true,
    });
    federation.ok(Command::OfferKeys(OfferKeys { bundle }));
    let fencing_token = federation.state.leases[&lease].fencing_token;
    let ready = |namespace: &str| {
        let outcome = LeaseOutcome::Ready { namespace: namespace.into(), secret_name: String::new() };
        Command::ReportLease(ReportLease { cluster: cluster("north"), lease, fencing_token, outcome })
    };
    assert_eq!(federation.refused(ready("liqo-tenant-other")).remedy, "report liqo-tenant-campus-west");
    federation.ok(ready("liqo-tenant-campus-west"));
}
