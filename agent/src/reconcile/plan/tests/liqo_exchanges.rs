//! Liqo's key exchange: one side step by step, then both sides with random faults.

mod network_state;
mod pair;

use comity_agent_liqo::network::NetworkState;
use comity_agent_state::record::NetworkRecord;

use super::*;
use crate::reconcile::steps::lease::{LeaseStep, RefuseLease};
use crate::reconcile::steps::liqo::{
    LiqoAdmit, LiqoAnswer, LiqoChallenge, LiqoIdentity, LiqoMint, LiqoNetwork, LiqoStep,
};

const HOUR: u64 = 3_600_000;

impl Sim {
    /// Applies the changes that the executors of the exchange make to the records.
    pub(super) fn carry_out_liqo(&mut self, step: &LiqoStep) {
        let blob = || Some(SecretBlob::new(vec![1]));
        match step {
            LiqoStep::Challenge(LiqoChallenge { epoch, .. }) => {
                let mut record = self.liqo();
                record.challenge = blob();
                self.put_liqo(record, *epoch, None, Some("liqo-challenge"));
            }
            LiqoStep::Admit(LiqoAdmit { epoch, envelope, .. }) => {
                let mut record = self.liqo();
                if envelope.is_some() {
                    record.request = blob();
                }
                assert!(record.request.is_some(), "nothing to admit by");
                (record.identity, record.done) = (blob(), true);
                self.put_liqo(record, *epoch, envelope.as_ref(), Some("liqo-identity"));
            }
            LiqoStep::Mint(LiqoMint { epoch, .. }) => {
                let mut record = self.liqo();
                let next_ms = self.now_ms + self.service.authentication.rotation_ms;
                record.minted = Some(MintedToken { at_ms: self.now_ms, next_ms });
                record.done = true;
                self.put_liqo(record, *epoch, None, Some("liqo-identity"));
            }
            LiqoStep::Answer(LiqoAnswer { epoch, envelope, .. }) => {
                let mut record = self.liqo();
                if envelope.is_some() {
                    record.challenge = blob();
                }
                assert!(record.challenge.is_some(), "nothing to answer");
                record.request = blob();
                self.put_liqo(record, *epoch, envelope.as_ref(), Some("liqo-tenant"));
            }
            LiqoStep::Identity(LiqoIdentity { epoch, envelope, .. }) => {
                let mut record = self.liqo();
                if envelope.is_some() {
                    record.identity = blob();
                }
                assert!(record.identity.is_some(), "nothing to make an identity of");
                record.done = true;
                self.put_liqo(record, *epoch, envelope.as_ref(), None);
            }
            LiqoStep::Network(LiqoNetwork { epoch, envelope, .. }) => {
                let mut record = self.liqo();
                let network = record.network.as_mut().unwrap();
                if let Some(envelope) = envelope {
                    assert_eq!(envelope.key.epoch, *epoch, "an envelope of another epoch does not open");
                    network.remote = Some(network_state(2));
                    self.opened(envelope);
                } else {
                    let expires_at_ms = self.now_ms + HOUR;
                    network.sent = self.live.networks[&PEERING].local.clone();
                    network.sealed = Some(SealedMessage { epoch: *epoch, expires_at_ms, refused: false });
                    network.last_sequence += 1;
                    self.report(ReportKey::LiqoNetwork(PEERING));
                }
                self.records.liqo.insert(PEERING, Arc::new(record));
            }
            LiqoStep::Remove(LiqoRemove { peering }) => {
                self.records.liqo.remove(peering);
            }
        }
    }

    fn liqo(&self) -> LiqoRecord {
        let peer = LiqoPeer { peering: PEERING.to_string(), cluster: "other".into(), liqo_id: "liqo-2".into() };
        let network = self.network.liqo_network.then(NetworkRecord::default);
        let fresh =
            || LiqoRecord { network, ..LiqoRecord::new(PEERING, self.side, &peer, &self.network.liqo_cluster_id) };
        self.records.liqo.get(&PEERING).map_or_else(fresh, |record| LiqoRecord::clone(record))
    }

    fn put_liqo(&mut self, mut record: LiqoRecord, epoch: u32, opened: Option<&Envelope>, seals: Option<&'static str>) {
        record.failed = None;
        if let Some(envelope) = opened {
            assert_eq!(envelope.key.epoch, epoch, "an envelope of another epoch does not open");
            self.opened(envelope);
        }
        if let Some(step) = seals {
            record.last_sequence += 1;
            let expires_at_ms = self.now_ms + HOUR;
            record.sealed = Some(SealedMessage { epoch, expires_at_ms, refused: false });
            let sequence = record.last_sequence;
            self.sealed.push(in_epoch(epoch, sequence, step));
            self.report(ReportKey::Liqo(PEERING));
        }
        self.records.liqo.insert(PEERING, Arc::new(record));
    }

    fn change_liqo(&mut self, change: impl FnOnce(&mut LiqoRecord)) {
        let mut record = self.liqo();
        change(&mut record);
        self.records.liqo.insert(PEERING, Arc::new(record));
    }

    fn is_done(&self) -> bool {
        self.records.liqo.get(&PEERING).is_some_and(|record| record.done)
    }

    /// The broker acknowledges all waiting messages.
    fn acknowledged(&mut self) {
        self.records.outbox.clear();
    }

    fn by_token(mut self) -> Self {
        self.service.authentication.by_token = true;
        self
    }

    fn with_node_lease(mut self) -> Self {
        self.desired.leases = vec![node_lease()];
        self
    }
}

/// The network of a cluster's Liqo, with a gateway that nobody can reach yet.
fn network_state(number: u8) -> NetworkState {
    NetworkState {
        pod_cidrs: vec!["10.1.0.0/16".parse().unwrap()],
        external_cidrs: vec![format!("10.7{number}.0.0/16").parse().unwrap()],
        public_key: None,
        endpoint: None,
    }
}

fn node_lease() -> Lease {
    Lease { delivery: Delivery::VirtualNode, ..lease("lease-1", 7, LeaseState::Connecting) }
}

fn in_epoch(epoch: u32, sequence: u64, step: &str) -> Envelope {
    let mut envelope = envelope(step, "");
    (envelope.key.epoch, envelope.key.sequence) = (epoch, sequence);
    envelope
}

fn exchanged_donor() -> Sim {
    let mut sim = connected_donor().with_node_lease();
    sim.settle();
    sim.desired.envelopes = vec![envelope("liqo-tenant", "")];
    sim.settle();
    sim.desired.envelopes.clear();
    sim.acknowledged();
    assert!(sim.is_done());
    sim
}

/// The next epoch, with verified keys of both sides.
fn next_epoch(sim: Sim, epoch: u32) -> Sim {
    let mut sim = sim.peering(PeeringState::Established, epoch, Bundles::Known);
    sim.desired.peerings[0].reported_established = true;
    sim.desired.envelopes.clear();
    sim.change_peering(epoch, |record| {
        record.preshared = Some(SecretKey::new([5; 32]));
        record.remote = Some(remote());
    });
    sim
}

#[test]
fn the_exchange_goes_step_by_step_on_the_donor() {
    let mut sim = connected_donor();
    assert_eq!(sim.settle(), [""; 0], "nobody wants a virtual node");
    sim = sim.with_node_lease();
    assert_eq!(sim.settle(), ["admit-lease", "liqo-challenge"], "nothing is prepared before there is a tenant");
    sim.desired.envelopes = vec![envelope("liqo-tenant", "")];
    assert_eq!(sim.settle(), ["liqo-admit", "prepare-lease", "seal-credential"]);
    assert!(sim.records.donors[&LEASE].grant.is_some());
    sim.restart();
    sim.acknowledged();
    sim.desired.leases[0].donor_ready = true;
    assert_eq!(sim.settle(), ["configure-fabric", "discard-envelope"], "what was opened is not opened again");
}

#[test]
fn the_exchange_goes_step_by_step_on_the_origin() {
    let mut sim = connected_origin();
    sim.desired.envelopes = vec![envelope("liqo-challenge", "")];
    assert_eq!(sim.settle(), [""; 0], "kept until a lease wants it");
    sim = sim.with_node_lease();
    assert_eq!(sim.settle(), ["liqo-answer"]);
    sim.desired.envelopes = vec![envelope("credential", "lease-1")];
    assert_eq!(sim.settle(), ["open-credential"], "no node before there is an identity");
    sim.desired.envelopes = vec![envelope("liqo-identity", "")];
    assert_eq!(sim.settle(), ["liqo-identity", "accept-credential", "probe"]);
    sim.restart();
    let again = sim.settle();
    assert!(!again.iter().any(|name| name.starts_with("liqo")), "{again:?}");
}

#[test]
fn it_begins_with_the_keys_and_does_not_wait_for_the_tunnel() {
    let mut sim = Sim::new(Side::Donor).peering(PeeringState::Keys, 1, Bundles::Unknown).with_node_lease();
    assert!(!sim.settle().contains(&"liqo-challenge"));
    let mut sim = Sim { records: sim.records, ..Sim::new(Side::Donor) }
        .peering(PeeringState::Authenticating, 1, Bundles::Known)
        .with_node_lease();
    sim.acknowledged();
    sim.carry_out(&sim.plan().into_iter().find(|step| step.name() == "send-psk").unwrap());
    let names = sim.names();
    assert!(names.contains(&"liqo-challenge") && names.contains(&"configure-fabric"), "at once: {names:?}");
}

#[test]
fn namespaces_need_no_liqo() {
    let mut sim = connected_donor();
    sim.service = NodeService::none("not installed");
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Connecting)];
    assert_eq!(sim.settle(), ["admit-lease", "prepare-lease", "seal-credential"]);
    assert!(sim.records.liqo.is_empty() && sim.records.donors[&LEASE].grant.is_none());
}

#[test]
fn a_refused_or_expired_message_is_sealed_again_while_a_lease_waits() {
    let mut sim = connected_donor().with_node_lease();
    sim.settle();
    assert_eq!(sim.settle(), [""; 0], "it is on its way");
    sim.acknowledged();
    assert_eq!(sim.settle(), [""; 0], "the broker has it");
    sim.change_liqo(|record| record.sealed.as_mut().unwrap().refused = true);
    assert_eq!(sim.settle(), ["liqo-challenge"]);
    sim.acknowledged();
    sim.now_ms += HOUR;
    sim.desired.leases[0].hold_until_ms = sim.now_ms + HOUR;
    assert_eq!(sim.settle(), ["liqo-challenge"]);
    sim.acknowledged();
    sim.now_ms += HOUR;
    sim.desired.leases[0].origin_ready = true;
    assert_eq!(sim.settle(), [""; 0], "nobody waits for it any more");
}

#[test]
fn a_new_epoch_gets_the_newest_message_again() {
    let mut sim = next_epoch(connected_donor().with_node_lease(), 2);
    sim.settle();
    assert_eq!(
        sim.sealed.last().map(|sealed| (sealed.key.step.as_str(), sealed.key.epoch)),
        Some(("liqo-challenge", 2))
    );
    let mut sim = next_epoch(exchanged_donor(), 2);
    let done = sim.settle();
    assert!(done.contains(&"liqo-admit"), "{done:?}");
    let last = sim.sealed.last().unwrap();
    assert_eq!((last.key.step.as_str(), last.key.epoch, last.key.sequence), ("liqo-identity", 2, 3));
    sim.desired.leases[0].origin_ready = true;
    let mut sim = next_epoch(sim, 3);
    assert!(!sim.settle().contains(&"liqo-admit"), "the origin has it");
}

#[test]
fn a_side_that_lost_its_records_recovers_from_the_other() {
    // The donor begins again, and the origin answers although it is done.
    let mut origin = connected_origin().with_node_lease();
    origin.desired.envelopes = vec![in_epoch(1, 5, "liqo-identity")];
    assert_eq!(origin.settle(), ["liqo-identity"], "an identity is enough");
    origin.desired.envelopes = vec![envelope("liqo-challenge", "")];
    assert_eq!(origin.settle(), ["liqo-answer"]);
    let mut donor = connected_donor().with_node_lease();
    donor.desired.envelopes = vec![envelope("liqo-tenant", "")];
    let done = donor.settle();
    assert!(done.contains(&"liqo-admit") && !done.contains(&"liqo-challenge"), "{done:?}");
}

#[test]
fn by_token_only_the_donor_sends_and_again_before_the_token_ends() {
    let mut sim = connected_donor().by_token();
    assert_eq!(sim.settle(), [""; 0], "nobody wants a virtual node");
    sim = sim.with_node_lease();
    assert_eq!(sim.settle(), ["admit-lease", "liqo-mint", "prepare-lease", "seal-credential"]);
    sim.acknowledged();
    sim.desired.leases[0].donor_ready = true;
    sim.desired.leases[0].origin_ready = true;
    sim.restart();
    sim.settle();
    let rotation = sim.service.authentication.rotation_ms;
    sim.now_ms += rotation - 1;
    assert!(!sim.settle().contains(&"liqo-mint"));
    // Whether or not there is a lease, and also while nothing more is lent.
    sim.desired.leases.clear();
    sim.records.donors.clear();
    sim.service.lends = Err("the admission policies are not there".to_owned());
    sim.now_ms += 1;
    assert_eq!(sim.settle(), ["liqo-mint"]);
    assert_eq!(sim.sealed.iter().filter(|sealed| sealed.key.step == "liqo-identity").count(), 2);
    // If the broker refuses a token, another follows, but not at once.
    sim.acknowledged();
    sim.change_liqo(|record| record.sealed.as_mut().unwrap().refused = true);
    assert_eq!(sim.settle(), [""; 0]);
    sim.now_ms += 10_000;
    assert_eq!(sim.settle(), ["liqo-mint"]);
}

#[test]
fn a_peering_stays_as_it_began() {
    let mut sim = exchanged_donor().by_token();
    sim.desired.leases[0].origin_ready = true;
    sim.now_ms += 100 * HOUR;
    sim.desired.leases[0].hold_until_ms = sim.now_ms + HOUR;
    assert!(!sim.settle().contains(&"liqo-mint"), "keys were exchanged");
    let mut sim = connected_donor().by_token().with_node_lease();
    sim.settle();
    sim.acknowledged();
    sim.service.authentication.by_token = false;
    sim.now_ms += 2_400_000;
    sim.desired.leases[0].hold_until_ms = sim.now_ms + HOUR;
    let done = sim.settle();
    assert!(done.contains(&"liqo-mint") && !done.contains(&"liqo-challenge"), "{done:?}");
}

#[test]
fn a_revoked_token_refuses_leases_and_is_retried_with_pauses() {
    let mut sim = connected_donor().by_token().with_node_lease();
    sim.settle();
    sim.acknowledged();
    let at_ms = sim.now_ms;
    sim.change_liqo(|record| {
        record.done = false;
        record.failed =
            Some(comity_agent_state::record::LiqoFailure { message: "liqo-token-revoked: deleted".into(), at_ms });
    });
    sim.desired.leases[0].donor_ready = false;
    let steps = sim.plan();
    assert!(!steps.iter().any(|step| step.name() == "liqo-mint"), "{steps:?}");
}

#[test]
fn closing_takes_liqo_down_first() {
    for sim in [exchanged_donor(), connected_origin()] {
        let mut sim = Sim { desired: DesiredState::default(), ..sim };
        sim.change_liqo(|record| record.done = true);
        let mut sim = sim.peering(PeeringState::Draining, 1, Bundles::Known);
        assert_eq!(sim.settle(), ["liqo-remove", "close-peering"]);
        sim.change_liqo(|_| {});
        sim.desired.peerings.clear();
        sim.live.unwanted = BTreeSet::from([ObjectId::Peering(PEERING)]);
        sim.records.donors.clear();
        assert_eq!(sim.settle(), ["liqo-remove", "forget-peering"]);
        assert!(sim.records.liqo.is_empty());
    }
}

#[test]
fn a_failed_exchange_refuses_its_leases_for_a_while() {
    for mut sim in [connected_donor().with_node_lease(), connected_origin().with_node_lease()] {
        sim.settle();
        let failed = comity_agent_state::record::LiqoFailure { message: "bad-signature: no".into(), at_ms: NOW };
        sim.change_liqo(|record| {
            (record.challenge, record.sealed) = (Some(SecretBlob::new(vec![1])), None);
            record.failed = Some(failed);
        });
        sim.acknowledged();
        let steps = sim.plan();
        let refused = |step: &Step| {
            matches!(
                step,
                Step::Lease(LeaseStep::RefuseLease(RefuseLease { code: "liqo-refused", message, .. }))
                    if message.contains("bad-signature")
            )
        };
        assert!(steps.len() == 1 && steps.iter().all(refused), "{steps:?}");
        sim.now_ms = NOW + 60_000;
        let names = sim.names();
        assert!(names == ["liqo-challenge"] || names == ["liqo-answer"], "{names:?}");
    }
}

#[test]
fn a_cluster_that_cannot_says_so_for_each_lease() {
    let code = |sim: &Sim| match &sim.plan()[..] {
        [Step::Lease(LeaseStep::RefuseLease(RefuseLease { code, message, .. }))] => format!("{code}: {message}"),
        other => panic!("{other:?}"),
    };
    for mut sim in [connected_donor().with_node_lease(), connected_origin().with_node_lease()] {
        sim.service = NodeService::none("the admission policies are not there");
        let said = code(&sim);
        assert!(said.starts_with("virtual-node-unavailable") && said.contains("admission policies"), "{said}");
    }
    type Change = fn(&mut RemoteNetwork);
    let changes: [(Change, &str); 3] = [
        (|network| network.liqo_cluster_id.clear(), "liqo.enabled"),
        (|network| network.tun = false, "fabric.mode: tun"),
        (|network| network.pod_cidrs = vec!["10.1.7.0/24".parse().unwrap()], "fabric.tun.remap"),
    ];
    for (change, reason) in changes {
        let mut sim = connected_origin().with_node_lease();
        sim.change_peering(1, |record| change(&mut record.remote.as_mut().unwrap().network));
        let said = code(&sim);
        assert!(said.starts_with("peer-cannot") && said.contains(reason), "{said}");
    }
    // Remapped, such a network is no obstacle.
    let mut sim = connected_origin().with_node_lease();
    sim.change_peering(1, |record| {
        record.remote.as_mut().unwrap().network.pod_cidrs = vec!["10.1.7.0/24".parse().unwrap()];
    });
    sim.service.remaps = Ok(());
    let refuses = |step: &Step| matches!(step, Step::Lease(LeaseStep::RefuseLease(_)));
    assert!(!sim.plan().iter().any(refuses), "{:?}", sim.plan());
    // Existing objects are not removed for it.
    let mut sim = exchanged_donor();
    sim.desired.leases[0].donor_ready = true;
    sim.service = NodeService::none("the admission policies are not there");
    assert_eq!(sim.settle(), [""; 0]);
}

#[test]
fn a_reinstalled_liqo_restarts_the_exchange() {
    let mut sim = exchanged_donor();
    sim.desired.leases[0].donor_ready = true;
    sim.change_liqo(|record| record.liqo_id = "another".into());
    assert_eq!(sim.settle(), ["liqo-remove", "liqo-challenge"]);
    let mut sim = exchanged_donor();
    sim.desired.leases[0].donor_ready = true;
    sim.change_liqo(|record| record.own_liqo_id = "another".into());
    assert_eq!(sim.settle(), ["liqo-remove", "liqo-challenge"]);
}
