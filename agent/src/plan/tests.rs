//! Plans are made again and again until nothing is left to do, with what each step does to the records.

#![expect(clippy::unwrap_used, reason = "tests")]

mod liqo;

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::delivery::Grant;
use crate::liqo::LiqoPeer;
use crate::record::{
    DonorRecord, HeldCredential, LiqoRecord, OriginRecord, Outgoing, PeeringRecord, RemoteKeys, RemoteNetwork,
    SealedCredential, SealedMessage, SecretBlob, SecretKey,
};

const NOW: u64 = 1_000_000;

/// One side, as a simulation that does what the steps do to the records.
struct Sim {
    cluster: &'static str,
    side: Side,
    desired: v1::DesiredState,
    records: Records,
    live: Live,
    policy: LocalPolicy,
    endpoints: Vec<String>,
    network: v1::ClusterNetwork,
    service: NodeService,
    is_live: bool,
    now_ms: u64,
    /// Messages of Liqo's exchange that were sealed.
    sealed: Vec<v1::Envelope>,
}

/// A cluster's network, with a Liqo.
fn network(number: u8) -> v1::ClusterNetwork {
    v1::ClusterNetwork {
        pod_cidrs: vec![format!("10.{number}.0.0/16")],
        api_server: format!("192.0.2.{number}:6443"),
        liqo_cluster_id: format!("liqo-{number}"),
        liqo_version: "v1.2.0".into(),
        tun: true,
    }
}

fn bundle(cluster: &str, side: Side) -> v1::KeyBundle {
    v1::KeyBundle {
        peering: "peer-1".into(),
        epoch: 1,
        cluster: cluster.into(),
        side: v1::Side::from(side).into(),
        network: Some(network(1)),
        ..v1::KeyBundle::default()
    }
}

fn peering_record(cluster: &str, side: Side, epoch: u32) -> PeeringRecord {
    PeeringRecord {
        peering: "peer-1".into(),
        epoch,
        side,
        wireguard_secret: SecretKey::new([1; 32]),
        hpke_secret: SecretKey::new([2; 32]),
        bundle: prost::Message::encode_to_vec(&bundle(cluster, side)),
        remote: None,
        preshared: None,
        nonce: None,
        sealed_sequence: 0,
        sealed_accepted: false,
        proven: false,
        opened: BTreeMap::new(),
    }
}

fn remote() -> RemoteKeys {
    RemoteKeys {
        cluster: "other".into(),
        wireguard_public: [3; 32],
        hpke_public: [4; 32],
        identity_key: comity_runtime::IdentityKey::generate(&comity_runtime::SeededEntropy::new(1)).public(),
        endpoints: vec!["127.0.0.1:1".into()],
        network: RemoteNetwork {
            pod_cidrs: vec!["10.2.0.0/16".parse().unwrap()],
            api_server: "192.0.2.2:6443".into(),
            liqo_cluster_id: "liqo-2".into(),
            liqo_version: "v1.2.0".into(),
            tun: true,
        },
    }
}

fn envelope(step: &str, lease: &str) -> v1::Envelope {
    v1::Envelope {
        peering: "peer-1".into(),
        epoch: 1,
        lease: lease.into(),
        step: step.into(),
        sequence: 1,
        ..v1::Envelope::default()
    }
}

fn lease(id: &str, token: u64, state: v1::LeaseState) -> v1::Lease {
    let devices = vec![v1::DeviceShare { device: 0, milli: 1_000, units: 1 }];
    let nodes = vec![v1::NodePlacement { node: "n".into(), devices, cpu_milli: 0, memory_mib: 0 }];
    let mut lease = v1::Lease {
        id: id.into(),
        origin: "origin".into(),
        placement: Some(v1::Placement { donor: "donor".into(), nodes, ..v1::Placement::default() }),
        peering: "peer-1".into(),
        fencing_token: token,
        hold_until_ms: NOW + 120_000,
        term_ms: 3_600_000,
        ..v1::Lease::default()
    };
    lease.set_state(state);
    lease
}

impl Sim {
    fn new(side: Side) -> Self {
        let cluster = if side == Side::Donor { "donor" } else { "origin" };
        Self {
            cluster,
            side,
            desired: v1::DesiredState::default(),
            records: Records::default(),
            live: Live::default(),
            policy: LocalPolicy::default(),
            endpoints: Vec::new(),
            network: network(1),
            service: NodeService { lends: Ok(()), borrows: Ok(()), needs_tun: true, peer_networks: Vec::new() },
            is_live: true,
            now_ms: NOW,
            sealed: Vec::new(),
        }
    }

    fn peering(mut self, state: v1::PeeringState, epoch: u32, keys: bool) -> Self {
        let mut peering = v1::Peering {
            id: "peer-1".into(),
            origin: "origin".into(),
            donor: "donor".into(),
            epoch,
            ..v1::Peering::default()
        };
        peering.set_state(state);
        self.desired.peerings = vec![v1::PeeringDirective {
            peering: Some(peering),
            origin_keys: keys.then(|| bundle("origin", Side::Origin)),
            donor_keys: keys.then(|| bundle("donor", Side::Donor)),
            ..v1::PeeringDirective::default()
        }];
        self
    }

    fn plan(&self) -> Vec<Step> {
        plan(&View {
            cluster: self.cluster,
            desired: &self.desired,
            is_live: self.is_live,
            records: &self.records,
            live: &self.live,
            endpoints: &self.endpoints,
            network: Some(&self.network),
            service: &self.service,
            policy: &self.policy,
            now_ms: self.now_ms,
            outage_grace_ms: 60_000,
        })
    }

    fn names(&self) -> Vec<&'static str> {
        self.plan().iter().map(Step::name).collect()
    }

    fn report(&mut self, key: ReportKey) {
        let id = self.records.outbox.keys().next_back().map_or(1, |id| id + 1);
        self.records.outbox.insert(id, Arc::new(Outgoing { key, message: v1::AgentMessage::default() }));
    }

    fn change_peering(&mut self, epoch: u32, change: impl FnOnce(&mut PeeringRecord)) {
        let mut record = self
            .records
            .peering("peer-1", epoch)
            .map_or_else(|| peering_record(self.cluster, self.side, epoch), |record| PeeringRecord::clone(record));
        change(&mut record);
        self.records.peerings.insert(("peer-1".into(), epoch), Arc::new(record));
    }

    /// What the step's executor does to what a plan sees.
    fn carry_out(&mut self, step: &Step) {
        match step {
            Step::MakeKeys { peering, epoch, .. } => {
                self.change_peering(*epoch, |_| {});
                self.report(ReportKey::Keys(peering.clone(), *epoch));
            }
            Step::SendPsk { expected, .. } => {
                self.change_peering(expected.epoch, |record| {
                    record.preshared = Some(SecretKey::new([5; 32]));
                    record.remote = Some(remote());
                });
                self.report(ReportKey::Psk(expected.peering.clone(), expected.epoch));
            }
            Step::OpenPsk { expected, envelope, .. } => {
                self.change_peering(expected.epoch, |record| {
                    record.preshared = Some(SecretKey::new([5; 32]));
                    record.remote = Some(remote());
                });
                self.opened(envelope);
                self.report(ReportKey::Proof(expected.peering.clone(), expected.epoch));
            }
            Step::SendProof { peering, epoch } => self.report(ReportKey::Proof(peering.clone(), *epoch)),
            Step::CheckProof { peering, epoch, envelope } => {
                self.change_peering(*epoch, |record| record.proven = true);
                if let Some(envelope) = envelope {
                    self.opened(envelope);
                }
                self.report(ReportKey::Authenticated(peering.clone(), *epoch));
            }
            Step::ConfigureFabric { peering, epoch } => {
                self.live.tunnels.insert(peering.clone(), *epoch);
            }
            Step::ReportEstablished { peering, epoch } => self.report(ReportKey::Established(peering.clone(), *epoch)),
            Step::FailPeering { peering, epoch, .. } => self.report(ReportKey::PeeringFailed(peering.clone(), *epoch)),
            Step::ClosePeering { peering, .. } => {
                self.live.tunnels.remove(peering);
                self.records.peerings.clear();
                self.report(ReportKey::Closed(peering.clone()));
            }
            Step::ForgetPeering { peering, before } => {
                self.records
                    .peerings
                    .retain(|(id, epoch), _| id != peering || before.is_some_and(|before| *epoch >= before));
                if before.is_none() {
                    self.live.tunnels.remove(peering);
                    self.records.closed.remove(peering);
                    self.live.unwanted.remove(peering);
                }
            }
            Step::LiqoChallenge { .. }
            | Step::LiqoAdmit { .. }
            | Step::LiqoAnswer { .. }
            | Step::LiqoIdentity { .. }
            | Step::LiqoRemove { .. } => self.carry_out_liqo(step),
            Step::AdmitLease { lease, fencing_token, milli, delivery } => {
                self.records.fence = self.records.fence.max(*fencing_token);
                self.put_donor(lease, *fencing_token, |record| {
                    record.milli = *milli;
                    record.delivery = *delivery;
                });
            }
            Step::RefuseLease { lease, .. } => self.report(ReportKey::LeaseFailed(lease.clone())),
            Step::PrepareLease { lease, .. } => {
                self.put_donor(&lease.id, lease.fencing_token, |record| {
                    record.namespace = Some("ns".into());
                    record.grant = (record.delivery == DeliveryKind::VirtualNode).then(|| Grant {
                        origin_liqo_id: "liqo-2".into(),
                        resources: BTreeMap::new(),
                        node_selector: BTreeMap::new(),
                        node_labels: BTreeMap::new(),
                    });
                });
            }
            Step::SealCredential { lease, ends_at_ms, epoch, .. } => {
                let (now, end) = (self.now_ms, *ends_at_ms);
                self.put_donor(&lease.id, lease.fencing_token, |record| {
                    record.last_sequence += 1;
                    record.sealed = Some(SealedCredential {
                        epoch: *epoch,
                        sequence: record.last_sequence,
                        issued_at_ms: now,
                        expires_at_ms: end.min(now + 600_000),
                        lease_end_ms: end,
                    });
                });
                self.report(ReportKey::Credential(lease.id.clone()));
                self.report(ReportKey::Ready(lease.id.clone()));
            }
            Step::ReportLease { lease, .. } => self.report(ReportKey::Ready(lease.clone())),
            Step::OpenCredential { lease, fencing_token, envelope } => {
                let mut record = OriginRecord::new(lease, *fencing_token, DeliveryKind::Namespace);
                record.credential =
                    Some(HeldCredential { epoch: 1, sequence: envelope.sequence, encoded: SecretBlob::new(vec![1]) });
                self.records.origins.insert(lease.clone(), Arc::new(record));
                self.opened(envelope);
            }
            Step::AcceptCredential { lease } => {
                let live = LiveLease { epoch: 1, sequence: 1, tunnel_epoch: self.live.tunnels["peer-1"] };
                self.live.accepted.insert(lease.id.clone(), live);
            }
            Step::Probe { lease } => self.report(ReportKey::Ready(lease.id.clone())),
            Step::RemoveLease { lease, side, report } => {
                self.live.accepted.remove(lease);
                self.live.unwanted.remove(lease);
                if side.is_none() {
                    self.records.donors.remove(lease);
                    self.records.origins.remove(lease);
                } else if *side == Some(Side::Donor) {
                    self.put_donor(lease, report.unwrap_or(1), |record| {
                        record.namespace = None;
                        record.sealed = None;
                        record.removed = true;
                    });
                } else {
                    let record = OriginRecord { removed: true, ..OriginRecord::new(lease, 1, DeliveryKind::Namespace) };
                    self.records.origins.insert(lease.clone(), Arc::new(record));
                }
                if report.is_some() {
                    self.report(ReportKey::Clean(lease.clone()));
                }
            }
            Step::ForgetLease { lease } => {
                self.records.donors.remove(lease);
                self.records.origins.remove(lease);
            }
            Step::DiscardEnvelope { ack } => self.report(ack_key(ack)),
        }
    }

    fn opened(&mut self, envelope: &v1::Envelope) {
        let kind = PeeringRecord::kind(&envelope.lease, &envelope.step);
        self.change_peering(envelope.epoch, |record| {
            record.opened.insert(kind, envelope.sequence);
        });
        self.report(ack_key(&ack_of(envelope)));
    }

    fn put_donor(&mut self, lease: &str, token: u64, change: impl FnOnce(&mut DonorRecord)) {
        let fresh =
            DonorRecord { admitted_at_ms: self.now_ms, ..DonorRecord::new(lease, token, DeliveryKind::Namespace) };
        let mut record = self.records.donors.get(lease).map_or(fresh, |record| DonorRecord::clone(record));
        record.removed = false;
        change(&mut record);
        self.records.donors.insert(lease.into(), Arc::new(record));
    }

    /// Plans and carries out until nothing is left; the names of the steps in their order.
    fn settle(&mut self) -> Vec<&'static str> {
        let mut done = Vec::new();
        for _ in 0..40 {
            let steps = self.plan();
            if steps.is_empty() {
                return done;
            }
            for step in &steps {
                done.push(step.name());
                self.carry_out(step);
            }
        }
        panic!("a plan never ends: {done:?}");
    }

    /// A restart: what is only in memory is gone.
    fn restart(&mut self) {
        self.live = Live::default();
    }
}

fn connected_donor() -> Sim {
    let mut sim = Sim::new(Side::Donor).peering(v1::PeeringState::Established, 1, true);
    sim.desired.peerings[0].reported_established = true;
    sim.change_peering(1, |record| {
        record.preshared = Some(SecretKey::new([5; 32]));
        record.remote = Some(remote());
    });
    sim.settle();
    sim
}

fn connected_origin() -> Sim {
    let mut sim = Sim::new(Side::Origin).peering(v1::PeeringState::Established, 1, true);
    sim.desired.peerings[0].reported_established = true;
    sim.change_peering(1, |record| {
        record.preshared = Some(SecretKey::new([5; 32]));
        record.remote = Some(remote());
    });
    sim.settle();
    sim
}

#[test]
fn the_handshake_goes_step_by_step_on_the_donor() {
    let mut sim = Sim::new(Side::Donor).peering(v1::PeeringState::Proposed, 1, false);
    assert_eq!(sim.settle(), ["make-keys"]);
    sim = sim.peering(v1::PeeringState::Authenticating, 1, true);
    assert_eq!(sim.settle(), ["send-psk", "configure-fabric"]);
    sim.desired.envelopes = vec![envelope("proof", "")];
    assert_eq!(sim.settle(), ["check-proof"]);
    sim.desired.envelopes.clear();
    sim = sim.peering(v1::PeeringState::Establishing, 1, true);
    assert_eq!(sim.settle(), ["report-established"]);
}

#[test]
fn the_handshake_goes_step_by_step_on_the_origin() {
    let mut sim = Sim::new(Side::Origin).peering(v1::PeeringState::Keys, 1, false);
    assert_eq!(sim.settle(), ["make-keys"]);
    sim = sim.peering(v1::PeeringState::Authenticating, 1, true);
    assert_eq!(sim.settle(), [""; 0]);
    sim.desired.envelopes = vec![envelope("psk", "")];
    assert_eq!(sim.settle(), ["open-psk"]);
    sim.desired.envelopes.clear();
    sim = sim.peering(v1::PeeringState::Establishing, 1, true);
    assert_eq!(sim.settle(), ["configure-fabric", "report-established"]);
}

#[test]
fn lost_keys_are_reported_and_not_made_again_in_the_same_epoch() {
    for state in [v1::PeeringState::Keys, v1::PeeringState::Authenticating, v1::PeeringState::Established] {
        let mut sim = Sim::new(Side::Donor).peering(state, 1, true);
        let steps = sim.plan();
        assert!(matches!(&steps[..], [Step::FailPeering { code: "keys-lost", .. }]), "{steps:?}");
        sim.settle();
    }
}

#[test]
fn a_fabric_that_moved_asks_for_a_new_epoch_and_keeps_its_tunnel() {
    let mut sim = connected_donor();
    sim.endpoints = vec!["127.0.0.1:9".to_owned()];
    let steps = sim.plan();
    assert!(matches!(&steps[..], [Step::FailPeering { code: "endpoints-changed", .. }]), "{steps:?}");
    sim.settle();
    assert_eq!(sim.live.tunnels["peer-1"], 1);
}

#[test]
fn a_network_that_changed_asks_for_a_new_epoch_too() {
    let mut sim = connected_donor();
    sim.network.liqo_version = "v1.2.1".to_owned();
    let steps = sim.plan();
    assert!(matches!(&steps[..], [Step::FailPeering { code: "network-changed", .. }]), "{steps:?}");
}

#[test]
fn the_old_tunnel_stays_while_a_new_epoch_is_made_and_comes_back_after_a_restart() {
    let mut sim = connected_donor().peering(v1::PeeringState::Failed, 1, false);
    assert_eq!(sim.settle(), [""; 0]);
    sim = sim.peering(v1::PeeringState::Proposed, 2, false);
    assert_eq!(sim.settle(), ["make-keys"]);
    assert_eq!(sim.live.tunnels["peer-1"], 1);
    sim.restart();
    assert_eq!(sim.settle(), ["configure-fabric"]);
    assert_eq!(sim.live.tunnels["peer-1"], 1);
}

#[test]
fn a_lease_goes_from_admission_to_its_end_on_the_donor() {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, v1::LeaseState::Connecting)];
    assert_eq!(sim.settle(), ["admit-lease", "prepare-lease", "seal-credential"]);
    sim.records.outbox.clear();
    sim.desired.leases[0].donor_ready = true;
    assert_eq!(sim.settle(), [""; 0]);
    sim.restart();
    assert_eq!(sim.settle(), ["configure-fabric"], "a restart needs the tunnel and nothing else");
    sim.desired.leases[0].set_state(v1::LeaseState::Ending);
    assert_eq!(sim.settle(), ["remove-lease"]);
    sim.records.outbox.clear();
    let record = DonorRecord { clean_acked: true, ..DonorRecord::clone(&sim.records.donors["lease-1"]) };
    sim.records.donors.insert("lease-1".into(), Arc::new(record));
    assert_eq!(sim.settle(), [""; 0]);
    sim.desired.leases.clear();
    assert_eq!(sim.settle(), ["remove-lease"], "the record goes once the broker has forgotten the lease");
    assert!(sim.records.donors.is_empty());
}

#[test]
fn a_lease_goes_from_credential_to_its_end_on_the_origin() {
    let mut sim = connected_origin();
    sim.desired.leases = vec![lease("lease-1", 7, v1::LeaseState::Connecting)];
    assert_eq!(sim.settle(), [""; 0]);
    sim.desired.envelopes = vec![envelope("credential", "lease-1")];
    assert_eq!(sim.settle(), ["open-credential", "accept-credential", "probe"]);
    sim.restart();
    sim.records.outbox.clear();
    sim.desired.leases[0].origin_ready = true;
    let again = sim.settle();
    assert!(again.contains(&"accept-credential") && !again.contains(&"open-credential"), "{again:?}");
    sim.desired.envelopes.clear();
    sim.desired.leases[0].set_state(v1::LeaseState::Ending);
    assert_eq!(sim.settle(), ["remove-lease"]);
}

#[test]
fn a_credential_is_renewed_after_two_thirds_of_its_life_and_sealed_anew_in_a_new_epoch() {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, v1::LeaseState::Connecting)];
    sim.settle();
    sim.records.outbox.clear();
    sim.desired.leases[0].donor_ready = true;
    sim.now_ms = NOW + 399_000;
    assert_eq!(sim.settle(), [""; 0]);
    sim.now_ms = NOW + 400_000;
    assert_eq!(sim.settle(), ["renew-credential"]);
    sim.records.outbox.clear();
    sim.change_peering(2, |record| {
        record.preshared = Some(SecretKey::new([5; 32]));
        record.remote = Some(remote());
    });
    sim = sim.peering(v1::PeeringState::Established, 2, true);
    sim.desired.peerings[0].reported_established = true;
    let done = sim.settle();
    assert!(done.contains(&"seal-credential") && done.contains(&"configure-fabric"), "{done:?}");
}

#[test]
fn the_donor_keeps_its_own_limits_and_its_fence() {
    let mut sim = connected_donor();
    sim.policy.max_lent_gpus = Some(1);
    sim.desired.leases = vec![lease("lease-2", 8, v1::LeaseState::Placed), lease("lease-1", 7, v1::LeaseState::Placed)];
    let steps = sim.plan();
    assert!(steps.iter().any(|step| matches!(step, Step::AdmitLease { lease, .. } if lease == "lease-1")), "{steps:?}");
    let refused = steps.iter().find_map(|step| match step {
        Step::RefuseLease { lease, code, .. } => Some((lease.as_str(), *code)),
        _ => None,
    });
    assert_eq!(refused, Some(("lease-2", "local-policy")));
    // What comes later with an older token is of the past, whoever says it.
    let mut sim = connected_donor();
    sim.records.fence = 9;
    sim.desired.leases = vec![lease("lease-1", 9, v1::LeaseState::Active)];
    assert_eq!(sim.names(), [""; 0]);
    sim.put_donor("lease-1", 10, |_| {});
    sim.desired.leases = vec![lease("lease-1", 9, v1::LeaseState::Ending)];
    assert_eq!(sim.names(), [""; 0], "an older token tears nothing down");
}

#[test]
fn silence_tears_nothing_down_until_end_and_grace_have_passed() {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, v1::LeaseState::Active)];
    sim.desired.leases[0].donor_ready = true;
    sim.desired.leases[0].expires_at_ms = NOW + 10_000;
    sim.settle();
    sim.records.outbox.clear();
    sim.is_live = false;
    sim.live.unwanted = BTreeSet::from(["lease-1".to_owned(), "lease-9".to_owned(), "peer-1".to_owned()]);
    sim.now_ms = NOW + 70_000;
    assert!(!sim.names().contains(&"remove-lease"));
    sim.now_ms = NOW + 70_001;
    assert_eq!(sim.settle(), ["remove-lease"]);
    // The broker is back and gave the lease a full fresh term: it is made again.
    sim.is_live = true;
    sim.live.unwanted.clear();
    sim.desired.leases[0].expires_at_ms = NOW + 500_000;
    assert_eq!(sim.settle(), ["admit-lease", "prepare-lease", "seal-credential"]);
}

#[test]
fn what_nobody_wants_goes_one_at_a_time_and_only_while_a_broker_is_heard() {
    let mut sim = connected_donor();
    sim.live.unwanted = BTreeSet::from(["lease-8".to_owned(), "lease-9".to_owned()]);
    sim.is_live = false;
    assert_eq!(sim.names(), [""; 0]);
    sim.is_live = true;
    assert_eq!(sim.names(), ["remove-lease"]);
    sim.desired.leases = vec![lease("lease-8", 1, v1::LeaseState::Ending)];
    assert!(
        sim.plan()
            .iter()
            .all(|step| !matches!(step, Step::RemoveLease { side: None, lease, .. } if lease == "lease-8"))
    );
}

#[test]
fn envelopes_of_no_use_are_acknowledged_once() {
    let mut sim = connected_origin();
    let old = v1::Envelope { epoch: 7, ..envelope("credential", "lease-1") };
    sim.desired.envelopes = vec![old, v1::Envelope { step: "unheard-of".into(), ..envelope("psk", "") }];
    let done = sim.settle();
    assert!(done.iter().all(|name| *name == "discard-envelope") && done.len() == 2, "{done:?}");
}

proptest! {
    /// From any point of a handshake and a lease, with a restart anywhere, the plan ends, and is empty when it has.
    #[test]
    fn every_plan_converges(
        donor in any::<bool>(),
        peering in 1_i32..=8,
        lease_state in 1_i32..=6,
        keys in any::<bool>(),
        has_record in any::<bool>(),
        complete in any::<bool>(),
        envelopes in prop::collection::vec(0_usize..3, 0..3),
        restart_after in 0_usize..6,
        is_live in any::<bool>(),
        enabled in any::<bool>(),
    ) {
        let side = if donor { Side::Donor } else { Side::Origin };
        let mut sim = Sim::new(side).peering(v1::PeeringState::try_from(peering).unwrap(), 1, keys);
        sim.policy.enabled = enabled;
        sim.is_live = is_live;
        sim.desired.leases = vec![lease("lease-1", 5, v1::LeaseState::try_from(lease_state).unwrap())];
        let kinds = [("psk", ""), ("proof", ""), ("credential", "lease-1")];
        sim.desired.envelopes = envelopes.iter().map(|kind| envelope(kinds[*kind].0, kinds[*kind].1)).collect();
        if has_record {
            sim.change_peering(1, |record| {
                if complete {
                    record.preshared = Some(SecretKey::new([5; 32]));
                    record.remote = Some(remote());
                }
            });
        }
        for _ in 0..restart_after {
            for step in sim.plan().into_iter().take(1) {
                sim.carry_out(&step);
            }
        }
        sim.restart();
        sim.settle();
        prop_assert!(sim.plan().is_empty());
        // One object, one step at a time.
        let steps = sim.plan();
        let objects: BTreeSet<_> = steps.iter().map(Step::object).collect();
        prop_assert_eq!(objects.len(), steps.len());
    }
}
