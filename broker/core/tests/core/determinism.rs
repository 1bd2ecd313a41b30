//! Applying the same log twice, or from a snapshot cut at any index, gives the same bytes.

use comity_audit::NonceKey;
use comity_core::command::{
    AckEnvelope, AdvertiseOffer, BeginTerm, CancelRequest, CheckpointLease, EvictCluster, Expire, InviteCluster,
    JoinCluster, LeaseOutcome, MarkClusters, OfferKeys, PeeringOutcome, PlaceRequests, RebaseTime, ReclaimLeases,
    RecordCertificate, RecordIssuer, RelayEnvelope, ReleaseLease, RenewLease, ReportLease, ReportPeering,
    ResumeInstitution, RevokeUser, SubmitRequest, SuspendInstitution,
};
use comity_core::demand::{Isolation, Share};
use comity_core::envelope::Step;
use comity_core::feasibility;
use comity_core::inventory::Sharing;
use comity_core::log::LOG_FORMAT;
use comity_core::member_certificate::{CertificateHolder, MemberCertificate};
use comity_core::network::ClusterNetwork;
use comity_core::reply::Idempotency;
use comity_core::{Actor, Command, LogEnvelope, Millis, State, Timestamp, scheduler, snapshot};
use comity_types::{
    ClusterId, Delivery, EndReason, InstitutionId, LeaseId, LeaseTreatment, PeeringId, RequestId, Side, namespace_name,
};
use proptest::prelude::*;

use super::federation::{Federation, cluster, device, offer, spec};
use super::handshake::{Ends, envelope, keys};

/// A random event; its numbers select existing objects, or the next one beyond them.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Submit { count: u32, milli: Option<u32>, virtual_node: bool, key: u8, window: u8 },
    Place,
    Cancel(u64),
    Release(u64),
    Renew(u64, u64),
    Lease { lease: u64, side: u8, outcome: u8 },
    Keys { peering: u64, side: u8, network: bool },
    Relay { peering: u64, lease: u64, step: u8 },
    Ack { peering: u64, lease: u64, step: u8 },
    Peering { peering: u64, side: u8, outcome: u8, epoch_off: u32 },
    Mark { which: u8, heard: bool },
    Offer { which: u8, gpus: usize, shared: bool, virtual_node: bool },
    LocalWork { which: u8, devices: usize },
    Reclaim,
    Checkpoint(u64),
    Certificate,
    Issuer,
    Evict { which: u8, leases: u8 },
    Suspend { which: u8, leases: u8 },
    Resume(u8),
    RevokeUser { leases: u8 },
    Invite(u8),
    Join { which: u8, another_key: bool },
    BeginTerm(u64),
    Rebase(i64),
    Expire,
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..6_u32, proptest::option::of(50..1_001_u32), any::<bool>(), 0..8_u8, 0..6_u8)
            .prop_map(|(count, milli, virtual_node, key, window)| {
                Event::Submit { count, milli, virtual_node, key, window }
            }),
        5 => Just(Event::Place),
        1 => (0..6_u64).prop_map(Event::Cancel),
        2 => (0..6_u64).prop_map(Event::Release),
        1 => (0..6_u64, 0..3_600_000_u64).prop_map(|(lease, duration)| Event::Renew(lease, duration)),
        6 => (0..6_u64, 0..3_u8, 0..8_u8).prop_map(|(lease, side, outcome)| Event::Lease { lease, side, outcome }),
        4 => (0..4_u64, 0..2_u8, any::<bool>())
            .prop_map(|(peering, side, network)| Event::Keys { peering, side, network }),
        4 => (0..4_u64, 0..6_u64, 0..6_u8).prop_map(|(peering, lease, step)| Event::Relay { peering, lease, step }),
        2 => (0..4_u64, 0..6_u64, 0..6_u8).prop_map(|(peering, lease, step)| Event::Ack { peering, lease, step }),
        5 => (0..4_u64, 0..2_u8, 0..4_u8, prop_oneof![9 => Just(0_u32), 1 => Just(1)])
            .prop_map(|(peering, side, outcome, epoch_off)| Event::Peering { peering, side, outcome, epoch_off }),
        2 => (0..3_u8, any::<bool>()).prop_map(|(which, heard)| Event::Mark { which, heard }),
        2 => (0..2_u8, 0..6_usize, any::<bool>(), any::<bool>())
            .prop_map(|(which, gpus, shared, virtual_node)| Event::Offer { which, gpus, shared, virtual_node }),
        3 => (0..2_u8, 0..9_usize).prop_map(|(which, devices)| Event::LocalWork { which, devices }),
        4 => Just(Event::Reclaim),
        1 => (0..6_u64).prop_map(Event::Checkpoint),
        1 => Just(Event::Certificate),
        1 => Just(Event::Issuer),
        1 => (0..3_u8, 0..3_u8).prop_map(|(which, leases)| Event::Evict { which, leases }),
        1 => (0..2_u8, 0..3_u8).prop_map(|(which, leases)| Event::Suspend { which, leases }),
        1 => (0..2_u8).prop_map(Event::Resume),
        1 => (0..3_u8).prop_map(|leases| Event::RevokeUser { leases }),
        1 => (0..3_u8).prop_map(Event::Invite),
        2 => (0..3_u8, any::<bool>()).prop_map(|(which, another_key)| Event::Join { which, another_key }),
        1 => prop_oneof![Just(0), 0..900_000_u64].prop_map(Event::BeginTerm),
        1 => (-10_000..900_000_i64).prop_map(Event::Rebase),
        3 => Just(Event::Expire),
    ]
}

const CLUSTERS: [&str; 3] = ["west", "north", "south"];
const ALICE: &str = "spiffe://test.example/user/alice";

fn side_of(state: &State, peering: PeeringId, side: u8) -> (ClusterId, Side) {
    let ends = state.peerings.get(&peering);
    if side == 0 {
        (ends.map_or_else(|| cluster("west"), |p| p.origin.clone()), Side::Origin)
    } else {
        (ends.map_or_else(|| cluster("north"), |p| p.donor.clone()), Side::Donor)
    }
}

fn command_for(state: &State, event: &Event) -> Command {
    match event {
        Event::Submit { count, milli, virtual_node, window, .. } => {
            let (share, class) = match milli {
                // Profiles of A100 boards of 40 GB: devices of class "small" below may be MIG devices of this kind.
                Some(milli) if milli % 3 == 0 => {
                    let profiles = ["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb"];
                    (Share::MigProfile(profiles[*milli as usize / 3 % 6].into()), "small")
                }
                Some(milli) => (Share::Milli(*milli), "small"),
                None => (Share::Whole, "big"),
            };
            let mut spec = spec(*count, share, class);
            spec.gpus.isolation = match milli.unwrap_or_default() % 5 {
                2 => Isolation::Memory,
                3 => Isolation::Hardware,
                _ => Isolation::None,
            };
            spec.delivery = if *virtual_node { Delivery::VirtualNode } else { Delivery::Namespace };
            let ahead = |ms: u64| Some(Timestamp(state.log_time.0 + ms));
            spec.not_before = (window % 3 == 1).then(|| ahead(5_000)).flatten();
            spec.start_by = (window % 3 > 0).then(|| ahead(90_000)).flatten();
            spec.release_idle = (count % 2 == 0).then_some(Millis(20_000));
            Command::SubmitRequest(SubmitRequest { spec, submitted_by: ALICE.into() })
        }
        Event::Place => Command::PlaceRequests(PlaceRequests { placements: scheduler::plan(state, 8).placements }),
        Event::Cancel(n) => Command::CancelRequest(CancelRequest { request: RequestId(*n) }),
        Event::Release(n) => Command::ReleaseLease(ReleaseLease { lease: LeaseId(*n) }),
        Event::Renew(n, duration) => {
            Command::RenewLease(RenewLease { lease: LeaseId(*n), duration: Millis(*duration), may_shorten: true })
        }
        Event::Lease { lease, side, outcome } => {
            let lease = LeaseId(*lease);
            let held = state.leases.get(&lease);
            let by = match (held, side) {
                (Some(held), 0) => held.origin.clone(),
                (Some(held), 1) => held.placement.donor.clone(),
                _ => cluster("west"),
            };
            let outcome = match outcome {
                0 | 3 | 4 => {
                    let namespace = match held.map_or(Delivery::Namespace, |held| held.delivery) {
                        Delivery::Namespace => namespace_name(lease),
                        Delivery::VirtualNode => format!("liqo-tenant-{}", held.unwrap().origin),
                    };
                    LeaseOutcome::Ready { namespace, secret_name: "s".into() }
                }
                1 => LeaseOutcome::Clean,
                5 => LeaseOutcome::Checkpointed,
                6 => LeaseOutcome::Idle { idle_for: Millis(20_000) },
                7 => LeaseOutcome::InUse,
                _ => LeaseOutcome::Failed {
                    code: "test".into(),
                    message: "planned".into(),
                    highest_fencing_token: lease.0 * 3,
                },
            };
            let fencing_token = held.map_or(1, |held| held.fencing_token);
            Command::ReportLease(ReportLease { cluster: by, lease, fencing_token, outcome })
        }
        Event::Keys { peering, side, network } => {
            let peering = PeeringId(*peering);
            let (by, side) = side_of(state, peering, *side);
            let epoch = state.peerings.get(&peering).map_or(1, |p| p.epoch);
            let mut bundle = keys(peering, epoch, by.as_str(), side);
            bundle.network = network.then(|| ClusterNetwork {
                pod_cidrs: vec!["10.44.0.0/16".into()],
                api_server: "10.0.0.7:6443".into(),
                liqo_cluster_id: by.to_string(),
                liqo_version: "v1.2.0".into(),
                tun: true,
                liqo_network: *network,
            });
            Command::OfferKeys(OfferKeys { bundle })
        }
        Event::Relay { peering, lease, step } => {
            Command::RelayEnvelope(RelayEnvelope { envelope: any_envelope(state, *peering, *lease, *step) })
        }
        Event::Ack { peering, lease, step } => {
            Command::AckEnvelope(AckEnvelope { key: any_envelope(state, *peering, *lease, *step).key })
        }
        Event::Peering { peering, side, outcome, epoch_off } => {
            let peering = PeeringId(*peering);
            let (by, _) = side_of(state, peering, *side);
            let epoch = state.peerings.get(&peering).map_or(1, |p| p.epoch).saturating_sub(*epoch_off);
            let outcome = match outcome {
                0 => PeeringOutcome::Authenticated,
                1 => PeeringOutcome::Established { rtt_us: 7 },
                2 => PeeringOutcome::Closed,
                _ => PeeringOutcome::Failed { code: "test".into(), message: "planned".into() },
            };
            Command::ReportPeering(ReportPeering { cluster: by, peering, epoch, outcome })
        }
        Event::Mark { which, heard } => {
            let named = vec![cluster(CLUSTERS[usize::from(*which)])];
            let (heard, silent) = if *heard { (named, Vec::new()) } else { (Vec::new(), named) };
            Command::MarkClusters(MarkClusters { heard, silent })
        }
        Event::Offer { which, gpus, shared, virtual_node } => {
            let name = CLUSTERS[1 + usize::from(*which)];
            let generation = state.clusters[&cluster(name)].offer_generation() + 1;
            let (one, other) = if *shared {
                (device(40_960, Sharing::TimeSlicing { replicas: 4 }), super::mig::a100_that_is_cut())
            } else {
                (device(81_559, Sharing::Exclusive), device(81_559, Sharing::Exclusive))
            };
            let mut offer = offer(generation, &[("n1", *gpus, one), ("n2", *gpus, other)]);
            if !virtual_node {
                offer.deliveries.remove(&Delivery::VirtualNode);
            }
            Command::AdvertiseOffer(AdvertiseOffer { cluster: cluster(name), offer })
        }
        Event::LocalWork { which, devices } => {
            let name = cluster(CLUSTERS[1 + usize::from(*which)]);
            let mut offer = state.clusters[&name].offer.as_deref().cloned().unwrap_or_else(|| offer(0, &[]));
            offer.generation = state.clusters[&name].offer_generation() + 1;
            let all = offer.nodes.iter_mut().flat_map(|(_, node)| node.devices.iter_mut().rev());
            all.enumerate().for_each(|(at, device)| device.local_use_milli = if at < *devices { 1_000 } else { 0 });
            Command::AdvertiseOffer(AdvertiseOffer { cluster: name, offer })
        }
        Event::Reclaim => Command::ReclaimLeases(ReclaimLeases {
            spare: feasibility::spared(state),
            reclaims: CLUSTERS
                .iter()
                .flat_map(|name| scheduler::reclaims_at(state, &cluster(name), state.log_time))
                .collect(),
        }),
        Event::Checkpoint(n) => Command::CheckpointLease(CheckpointLease { lease: LeaseId(*n) }),
        Event::Certificate => Command::RecordCertificate(RecordCertificate {
            cluster: cluster("west"),
            identity_key: "ed25519:west".to_owned(),
            not_after: Timestamp(state.log_time.0 + 1),
        }),
        Event::Issuer => Command::RecordIssuer(RecordIssuer {
            holder: CertificateHolder::Cluster(cluster("west")),
            certificate: MemberCertificate {
                root_sha256: "ab".repeat(32),
                not_after: Timestamp(state.log_time.0 + 86_400_000),
            },
        }),
        Event::Evict { which, leases } => Command::EvictCluster(EvictCluster {
            cluster: cluster(CLUSTERS[usize::from(*which)]),
            leases: TREATMENTS[usize::from(*leases)],
        }),
        Event::Suspend { which, leases } => Command::SuspendInstitution(SuspendInstitution {
            institution: institution(*which),
            leases: TREATMENTS[usize::from(*leases)],
        }),
        Event::Resume(which) => Command::ResumeInstitution(ResumeInstitution { institution: institution(*which) }),
        Event::RevokeUser { leases } => Command::RevokeUser(RevokeUser {
            user: "alice".to_owned(),
            allow_unknown: true,
            leases: TREATMENTS[usize::from(*leases)],
        }),
        Event::Invite(which) => Command::InviteCluster(InviteCluster {
            cluster: cluster(CLUSTERS[usize::from(*which)]),
            secret_sha256: format!("{which:0>64}"),
            ttl: Millis::from_hours(1),
            replace: true,
        }),
        Event::Join { which, another_key } => Command::JoinCluster(JoinCluster {
            cluster: cluster(CLUSTERS[usize::from(*which)]),
            secret_sha256: format!("{which:0>64}"),
            identity_key: format!("ed25519:{}{}", CLUSTERS[usize::from(*which)], if *another_key { "-2" } else { "" }),
            certificate_not_after: Timestamp(state.log_time.0 + 1),
        }),
        Event::BeginTerm(outage) => {
            Command::BeginTerm(BeginTerm { broker: 1, outage: Millis(*outage), nonce_key: NonceKey::default() })
        }
        Event::Rebase(by_ms) => Command::RebaseTime(RebaseTime { from_shift_ms: state.time_shift_ms, by_ms: *by_ms }),
        Event::Expire => Command::Expire(Expire {}),
    }
}

const TREATMENTS: [LeaseTreatment; 3] = [LeaseTreatment::Finish, LeaseTreatment::Drain, LeaseTreatment::Stop];

fn institution(which: u8) -> InstitutionId {
    InstitutionId::parse(["western", "lenders"][usize::from(which)], "institution").unwrap()
}

fn any_envelope(state: &State, peering: u64, lease: u64, step: u8) -> comity_core::envelope::Envelope {
    let peering = PeeringId(peering);
    let epoch = state.peerings.get(&peering).map_or(1, |p| p.epoch);
    let (origin, donor) = (side_of(state, peering, 0).0, side_of(state, peering, 1).0);
    let step = Step::ALL[usize::from(step)];
    let (from, to) = if step.sender() == Side::Donor { (donor, origin) } else { (origin, donor) };
    let lease = step.is_of_a_lease().then_some(LeaseId(lease));
    envelope(peering, epoch, Ends { from: from.as_str(), to: to.as_str() }, lease, step)
}

/// Applies the events with pauses between them; returns the federation with its log.
pub(crate) fn happen(events: &[(Event, u64)]) -> Federation {
    happen_in(Federation::ready(), events, |_, _| {})
}

/// Like [`happen`], in a federation of one's own. Calls `before` with the state before each event, and its time.
pub(crate) fn happen_in(
    mut federation: Federation,
    events: &[(Event, u64)],
    mut before: impl FnMut(&State, Timestamp),
) -> Federation {
    for (event, pause) in events {
        federation.now += pause;
        before(&federation.state, Timestamp(federation.now));
        let command = command_for(&federation.state, event);
        let idempotency = match event {
            Event::Submit { count, milli, virtual_node, key, window } => Some(Idempotency {
                caller: ALICE.into(),
                key: key.to_string(),
                body_sha256: format!("{count} {milli:?} {virtual_node} {window}"),
            }),
            _ => None,
        };
        let entry = LogEnvelope {
            format: LOG_FORMAT,
            actor: Actor::Leader(1),
            generation: 0,
            time: Timestamp(federation.now),
            traceparent: String::new(),
            idempotency,
            command,
        };
        federation.state.apply(&entry).unwrap();
        federation.log.push(entry);
    }
    federation
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_log_gives_the_same_bytes_from_any_cut(
        events in proptest::collection::vec((event(), prop_oneof![8 => 0..2_000_u64, 1 => 0..700_000_u64]), 1..90)
    ) {
        let federation = happen(&events);
        let wanted = snapshot::encode(&federation.state).unwrap();
        // Through JSON, the format of the log on disk.
        let log: Vec<LogEnvelope> = serde_json::from_slice(&serde_json::to_vec(&federation.log).unwrap()).unwrap();
        let mut state = State::default();
        let mut cuts = vec![snapshot::encode(&state).unwrap()];
        for entry in &log {
            state.apply(entry).unwrap();
            cuts.push(snapshot::encode(&state).unwrap());
        }
        prop_assert_eq!(cuts.last().unwrap(), &wanted);
        for (index, cut) in cuts.iter().enumerate() {
            let mut restored = snapshot::decode(cut).unwrap();
            prop_assert_eq!(&snapshot::encode(&restored).unwrap(), cut, "encode∘decode at {}", index);
            // Every fifth cut replays to the end, the others one entry: the rest follows by induction.
            let end = if index % 5 == 0 { log.len() } else { (index + 1).min(log.len()) };
            for entry in &log[index..end] {
                restored.apply(entry).unwrap();
            }
            prop_assert_eq!(&snapshot::encode(&restored).unwrap(), &cuts[end], "from the cut at {}", index);
        }
    }
}

/// Otherwise random histories say nothing about the treatment of a revoked user's leases.
#[test]
fn random_revocations_are_of_the_user_who_submits() {
    let submit = Event::Submit { count: 1, milli: None, virtual_node: false, key: 0, window: 0 };
    let history = [submit, Event::Place, Event::RevokeUser { leases: 2 }].map(|event| (event, 0));
    let ended = happen(&history).state.leases.values().map(|lease| lease.end_reason).collect::<Vec<_>>();
    assert_eq!(ended, [Some(EndReason::Cancelled)]);
}

#[test]
fn log_time_never_goes_back() {
    let mut federation = Federation::ready();
    let before = federation.state.log_time;
    federation.now = 5;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.log_time, before);
}
