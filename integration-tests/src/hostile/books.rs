//! What an honest broker would do with the reports of its agents, without a log, policy or scheduler: the least that
//! makes a lease active. A hostile broker begins from it and changes one thing.

mod signed_history;
mod told_history;

use std::collections::{BTreeMap, BTreeSet};

use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::{lease_report, peering_report};

use crate::watch::now_ms;

pub(crate) use signed_history::{FORGED_TENANT, FORMER_TENANT, KEPT_DATASET, POLICY_FOLDER, SignedHistory};
pub(crate) use told_history::ToldHistory;

/// The cluster that borrows.
pub(crate) const ORIGIN_CLUSTER: &str = "campus";
/// The cluster that lends.
pub(crate) const DONOR_CLUSTER: &str = "centre";
/// Before the numbers of clusters that the origin remembers from before.
pub(crate) const EARLIER: &str = "earlier-";
/// GPUs of each of the donor's two nodes.
pub(crate) const NODE_GPUS: u32 = 4;
/// How long a handshake may take; an honest broker then begins the next epoch.
const HANDSHAKE_LIMIT_MS: u64 = 20_000;
/// How long a lease is held until it is active. It takes well under a second on an idle machine.
const HOLD_MS: u64 = 30_000;
/// CPU and main memory that a lease gets for each GPU.
const CPU_MILLI_PER_GPU: u64 = 1_000;
const MEMORY_MIB_PER_GPU: u64 = 1_024;
/// A device that nobody uses, in thousandths of it.
const WHOLE_DEVICE: u32 = 1_000;

/// What the broker says about a member.
#[derive(Clone, Debug, Default)]
pub(crate) struct ToldMember {
    /// Public identity key with which it joined.
    pub(crate) identity_key: String,
    /// Its institution.
    pub(crate) institution: String,
}

/// A peering with both sides' keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeeringEntry {
    /// The peering.
    pub(crate) peering: v1::Peering,
    /// Keys of each side in this epoch.
    pub(crate) origin_keys: Option<v1::KeyBundle>,
    /// As above.
    pub(crate) donor_keys: Option<v1::KeyBundle>,
    /// Sides that reported the tunnel.
    pub(crate) established: BTreeSet<i32>,
    /// Sides that reported that nothing is left.
    pub(crate) closed: BTreeSet<i32>,
    /// Side that the broker itself plays, with keys of its own.
    pub(crate) played: Option<v1::Side>,
    /// Institution that the broker names for the played side; empty: the true one.
    pub(crate) label: String,
    /// When this epoch began, in milliseconds since 1970.
    began_ms: u64,
}

impl PeeringEntry {
    /// The side of a cluster, if it has one and its agent plays it.
    pub(crate) fn side_of(&self, cluster: &str) -> Option<v1::Side> {
        let side = match cluster {
            cluster if cluster == self.peering.donor => v1::Side::Donor,
            cluster if cluster == self.peering.origin => v1::Side::Origin,
            _ => return None,
        };
        (self.played != Some(side)).then_some(side)
    }

    /// Cluster of a side.
    pub(crate) fn cluster_of(&self, side: v1::Side) -> &str {
        if side == v1::Side::Donor { &self.peering.donor } else { &self.peering.origin }
    }

    /// Keys of a side.
    pub(crate) fn keys_mut(&mut self, side: v1::Side) -> &mut Option<v1::KeyBundle> {
        if side == v1::Side::Donor { &mut self.donor_keys } else { &mut self.origin_keys }
    }

    /// Begins the next epoch; a played side stays so.
    pub(crate) fn begin_epoch(&mut self, epoch: u32) {
        self.peering.epoch = epoch;
        self.began_ms = now_ms();
        self.peering.set_state(v1::PeeringState::Proposed);
        self.peering.message.clear();
        (self.origin_keys, self.donor_keys) = (None, None);
        self.established.clear();
        self.closed.clear();
    }

    /// Whether an honest broker begins the next epoch now: this one failed, or takes too long.
    fn is_over(&self, now_ms: u64) -> bool {
        use v1::PeeringState::{Authenticating, Establishing, Failed, Keys, Proposed};
        match self.peering.state() {
            Failed => true,
            Proposed | Keys | Authenticating | Establishing => {
                now_ms.saturating_sub(self.began_ms) > HANDSHAKE_LIMIT_MS
            }
            _ => false,
        }
    }

    /// Moves on once both sides' keys are known.
    pub(crate) fn take_keys(&mut self, side: v1::Side, bundle: v1::KeyBundle) {
        if !matches!(self.peering.state(), v1::PeeringState::Proposed | v1::PeeringState::Keys) {
            return;
        }
        *self.keys_mut(side) = Some(bundle);
        let both = self.origin_keys.is_some() && self.donor_keys.is_some();
        self.peering.set_state(if both { v1::PeeringState::Authenticating } else { v1::PeeringState::Keys });
    }

    /// Moves on once both sides' tunnels are up.
    pub(crate) fn take_established(&mut self, side: v1::Side) {
        if !matches!(self.peering.state(), v1::PeeringState::Establishing | v1::PeeringState::Established) {
            return;
        }
        self.established.insert(side.into());
        if self.established.len() == 2 {
            self.peering.set_state(v1::PeeringState::Established);
        }
    }
}

/// The ledger of a broker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Books {
    /// Members by cluster.
    pub(crate) members: BTreeMap<String, ToldMember>,
    /// The commit in force; empty where no policy is signed.
    pub(crate) policy_commit: String,
    /// Leases by id.
    pub(crate) leases: BTreeMap<String, v1::Lease>,
    /// Peerings by id.
    pub(crate) peerings: BTreeMap<String, PeeringEntry>,
    /// Envelopes that no receiver has acknowledged.
    pub(crate) envelopes: Vec<v1::Envelope>,
    /// Newest offers by cluster.
    pub(crate) offers: BTreeMap<String, v1::Offer>,
    /// Handshakes that took too long.
    pub(crate) late_handshakes: u64,
    /// Length of a lease's term.
    pub(crate) term_ms: u64,
    /// Number of the newest lease or peering.
    numbers: u64,
    /// The newest fencing token.
    tokens: u64,
    /// Revision of the state.
    revision: u64,
}

impl Books {
    /// A number that no lease or peering has.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Begins the next epoch of each handshake between agents that failed or takes too long, and ends leases whose term
    /// or hold is over, as an honest broker does.
    pub(crate) fn tend(&mut self, now_ms: u64) {
        let mut over = BTreeSet::new();
        for (id, entry) in self.peerings.iter_mut().filter(|(_, entry)| entry.played.is_none() && entry.is_over(now_ms))
        {
            self.late_handshakes += u64::from(entry.peering.state() != v1::PeeringState::Failed);
            entry.begin_epoch(entry.peering.epoch.saturating_add(1));
            over.insert(id.clone());
        }
        self.envelopes.retain(|held| !over.contains(&held.peering));
        for lease in self.leases.values_mut() {
            if let Some(reason) = due_end(lease, now_ms) {
                end(lease, &self.members, reason);
            }
        }
    }

    /// Whether [`tend`](Self::tend) would do something.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        self.peerings.values().any(|entry| entry.played.is_none() && entry.is_over(now_ms))
            || self.leases.values().any(|lease| due_end(lease, now_ms).is_some())
    }

    /// Forgets what happened since `before`, as a broker does that never learned of it. Revisions go on.
    pub(crate) fn go_back(&mut self, before: Self) {
        *self = Self { revision: self.revision, ..before };
    }

    /// Takes a report as an honest broker does.
    pub(crate) fn take(&mut self, cluster: &str, body: &Body, now_ms: u64) {
        match body {
            Body::Offer(offer) => drop(self.offers.insert(cluster.to_owned(), offer.clone())),
            Body::KeyBundle(bundle) => {
                if let Some((entry, side)) = self.entry(cluster, &bundle.peering, bundle.epoch) {
                    entry.take_keys(side, bundle.clone());
                }
            }
            Body::Envelope(envelope) => self.relay(envelope.clone()),
            Body::EnvelopeAck(ack) => self.envelopes.retain(|held| held.to != cluster || !is_acknowledged(held, ack)),
            Body::PeeringReport(report) => self.take_peering_report(cluster, report),
            Body::LeaseReport(report) => self.take_lease_report(cluster, report, now_ms),
            Body::Hello(_) | Body::Heartbeat(_) => {}
        }
    }

    fn entry(&mut self, cluster: &str, peering: &str, epoch: u32) -> Option<(&mut PeeringEntry, v1::Side)> {
        let entry = self.peerings.get_mut(peering).filter(|entry| entry.peering.epoch == epoch)?;
        let side = entry.side_of(cluster)?;
        Some((entry, side))
    }

    /// Keeps an envelope until it is acknowledged; it replaces older ones of its step.
    pub(crate) fn relay(&mut self, envelope: v1::Envelope) {
        self.envelopes.retain(|held| !is_same_step(held, &envelope));
        self.envelopes.push(envelope);
    }

    fn take_peering_report(&mut self, cluster: &str, report: &v1::PeeringReport) {
        let Some((entry, side)) = self.entry(cluster, &report.peering, report.epoch) else { return };
        match &report.outcome {
            Some(peering_report::Outcome::Authenticated(_)) if side == v1::Side::Donor => {
                if entry.peering.state() == v1::PeeringState::Authenticating {
                    entry.peering.set_state(v1::PeeringState::Establishing);
                }
            }
            Some(peering_report::Outcome::Established(_)) => entry.take_established(side),
            Some(peering_report::Outcome::Failed(failed)) => {
                entry.peering.set_state(v1::PeeringState::Failed);
                entry.peering.message = format!("{cluster}: {} ({})", failed.message, failed.code);
                (entry.origin_keys, entry.donor_keys) = (None, None);
                entry.established.clear();
                self.envelopes.retain(|held| held.peering != report.peering);
            }
            Some(peering_report::Outcome::Closed(_)) => {
                entry.closed.insert(side.into());
                if entry.closed.len() + usize::from(entry.played.is_some()) >= 2 {
                    entry.peering.set_state(v1::PeeringState::Closed);
                }
            }
            Some(peering_report::Outcome::Authenticated(_)) | None => {}
        }
    }

    fn take_lease_report(&mut self, cluster: &str, report: &v1::LeaseReport, now_ms: u64) {
        let members = &self.members;
        let Some(lease) = self.leases.get_mut(&report.lease) else { return };
        let is_donor = lease.placement.as_ref().is_some_and(|placement| placement.donor == cluster);
        match &report.outcome {
            Some(lease_report::Outcome::Ready(_)) if is_donor => lease.donor_ready = true,
            Some(lease_report::Outcome::Ready(_)) => lease.origin_ready = true,
            Some(lease_report::Outcome::Failed(failed)) => {
                lease.message = format!("{cluster}: {} ({})", failed.message, failed.code);
                if is_donor {
                    self.tokens = self.tokens.max(failed.highest_fencing_token);
                }
                end(lease, members, if is_donor { v1::EndReason::DonorFailed } else { v1::EndReason::OriginFailed });
            }
            Some(lease_report::Outcome::Clean(_)) if is_donor => lease.donor_ready = false,
            Some(lease_report::Outcome::Clean(_)) => lease.origin_ready = false,
            _ => {}
        }
        let is_starting = matches!(lease.state(), v1::LeaseState::Placed | v1::LeaseState::Connecting);
        if is_starting && lease.donor_ready && lease.origin_ready {
            lease.set_state(v1::LeaseState::Active);
            (lease.active_at_ms, lease.expires_at_ms) = (now_ms, now_ms + self.term_ms);
        }
        if lease.state() == v1::LeaseState::Ending && !lease.donor_ready && !lease.origin_ready {
            let id = lease.id.clone();
            self.leases.remove(&id);
            self.envelopes.retain(|held| held.lease != id);
        }
    }

    /// The whole desired state of a cluster.
    pub(crate) fn desired(&mut self, cluster: &str, played_by: &ToldMember, now_ms: u64) -> v1::DesiredState {
        self.revision += 1;
        let is_party = |lease: &&v1::Lease| {
            lease.origin == cluster || lease.placement.as_ref().is_some_and(|placement| placement.donor == cluster)
        };
        let open = self.peerings.values().filter(|entry| entry.peering.state() != v1::PeeringState::Closed);
        let directives = open.filter_map(|entry| self.directive(entry, cluster, played_by));
        v1::DesiredState {
            revision: self.revision,
            log_time_ms: now_ms,
            peerings: directives.collect(),
            leases: self.leases.values().filter(is_party).cloned().collect(),
            envelopes: self.envelopes.iter().filter(|envelope| envelope.to == cluster).cloned().collect(),
            policy_commit: self.policy_commit.clone(),
        }
    }

    fn directive(&self, entry: &PeeringEntry, cluster: &str, played_by: &ToldMember) -> Option<v1::PeeringDirective> {
        let side = entry.side_of(cluster)?;
        let other = if side == v1::Side::Donor { v1::Side::Origin } else { v1::Side::Donor };
        let true_member = self.members.get(entry.cluster_of(other));
        let is_played = entry.played == Some(other);
        let identity_key = if is_played { Some(played_by) } else { true_member }.map(|told| told.identity_key.clone());
        // A played side under the name of a member keeps that member's institution, unless the broker relabels it.
        let institution = true_member.or(is_played.then_some(played_by)).map(|told| told.institution.clone());
        Some(v1::PeeringDirective {
            peering: Some(entry.peering.clone()),
            origin_keys: entry.origin_keys.clone(),
            donor_keys: entry.donor_keys.clone(),
            peer_identity_key: identity_key.unwrap_or_default(),
            peer_institution: if entry.label.is_empty() {
                institution.unwrap_or_default()
            } else {
                entry.label.clone()
            },
            peer_institution_keys: Vec::new(),
            reported_established: entry.established.contains(&i32::from(side)),
        })
    }

    /// The open peering between two agents; proposes one if there is none.
    pub(crate) fn peering_between(&mut self, origin: &str, donor: &str) -> String {
        let found = self.peerings.iter().find(|(_, entry)| {
            let is_open = !matches!(entry.peering.state(), v1::PeeringState::Closed | v1::PeeringState::Draining);
            entry.played.is_none() && entry.peering.origin == origin && entry.peering.donor == donor && is_open
        });
        if let Some((id, _)) = found {
            return id.clone();
        }
        self.propose(origin, donor, None)
    }

    /// Proposes a peering.
    pub(crate) fn propose(&mut self, origin: &str, donor: &str, played: Option<v1::Side>) -> String {
        let id = format!("peer-{}", self.next_number());
        let mut entry = PeeringEntry { played, ..PeeringEntry::default() };
        (entry.peering.id, entry.peering.origin, entry.peering.donor) =
            (id.clone(), origin.to_owned(), donor.to_owned());
        entry.begin_epoch(1);
        self.peerings.insert(id.clone(), entry);
        id
    }

    /// Grants a lease of whole GPUs that nobody uses; returns its id.
    pub(crate) fn grant(&mut self, origin: &str, donor: &str, gpus: usize, now_ms: u64) -> String {
        let peering = self.peering_between(origin, donor);
        let placement = self.place(donor, gpus);
        let lease = self.draft(origin, &peering, placement, now_ms);
        let id = lease.id.clone();
        self.leases.insert(id.clone(), lease);
        id
    }

    /// A lease that is not in the ledger.
    pub(crate) fn draft(&mut self, origin: &str, peering: &str, placement: v1::Placement, now_ms: u64) -> v1::Lease {
        let number = self.next_number();
        self.tokens += 1;
        let gpus = v1::GpuDemand {
            class: "frontier".to_owned(),
            share: Some(v1::Share { kind: Some(v1::share::Kind::Whole(v1::share::Whole {})) }),
            count: u32::try_from(placement.resource_count).unwrap_or(u32::MAX),
            cpu_milli_per_gpu: CPU_MILLI_PER_GPU,
            memory_mib_per_gpu: MEMORY_MIB_PER_GPU,
            ..v1::GpuDemand::default()
        };
        v1::Lease {
            id: format!("lease-{number}"),
            request: format!("req-{number}"),
            tenant: "poly-ml".to_owned(),
            origin: origin.to_owned(),
            placement: Some(placement),
            peering: peering.to_owned(),
            state: v1::LeaseState::Placed.into(),
            fencing_token: self.tokens,
            hold_until_ms: now_ms + HOLD_MS,
            placed_at_ms: now_ms,
            target_namespace: "comity-leases".to_owned(),
            gpus: Some(gpus),
            term_ms: self.term_ms,
            delivery: v1::Delivery::Namespace.into(),
            ..v1::Lease::default()
        }
    }

    /// A placement on the first free devices of a donor's offer; fewer than asked for if there are not enough.
    pub(crate) fn place(&self, donor: &str, gpus: usize) -> v1::Placement {
        let placements = || self.leases.values().filter_map(|lease| lease.placement.as_ref());
        let taken: BTreeSet<(&str, u32)> = placements()
            .filter(|placement| placement.donor == donor)
            .flat_map(|placement| &placement.nodes)
            .flat_map(|node| node.devices.iter().map(|share| (node.node.as_str(), share.device)))
            .collect();
        let is_free = |node: &v1::Node, device: &v1::Device| {
            device.local_use_milli == 0 && !taken.contains(&(node.id.as_str(), device.index))
        };
        self.place_on(donor, gpus, is_free)
    }

    /// A placement on the first devices of a donor's offer that pass a test.
    pub(crate) fn place_on(
        &self,
        donor: &str,
        gpus: usize,
        is_wanted: impl Fn(&v1::Node, &v1::Device) -> bool,
    ) -> v1::Placement {
        let offer = self.offers.get(donor).cloned().unwrap_or_default();
        let mut placement =
            v1::Placement { donor: donor.to_owned(), offer_generation: offer.generation, ..v1::Placement::default() };
        let mut left = gpus;
        for node in &offer.nodes {
            let wanted: Vec<&v1::Device> =
                node.devices.iter().filter(|device| is_wanted(node, device)).take(left).collect();
            let Some(first) = wanted.first() else { continue };
            placement.resource_name.clone_from(&first.resource_name);
            left -= wanted.len();
            let count = wanted.len() as u64;
            placement.resource_count += count;
            let share = |device: &&v1::Device| v1::DeviceShare {
                device: device.index,
                milli: WHOLE_DEVICE,
                units: 1,
                ..v1::DeviceShare::default()
            };
            placement.nodes.push(v1::NodePlacement {
                node: node.id.clone(),
                devices: wanted.iter().map(share).collect(),
                cpu_milli: count * CPU_MILLI_PER_GPU,
                memory_mib: count * MEMORY_MIB_PER_GPU,
                ..v1::NodePlacement::default()
            });
        }
        placement
    }

    /// Ends a lease, as its owner's release does.
    pub(crate) fn release(&mut self, lease: &str) {
        if let Some(lease) = self.leases.get_mut(lease) {
            end(lease, &self.members, v1::EndReason::Released);
        }
    }
}

/// Ends a lease. Every member that is a party must then say that nothing is left, whatever it reported before.
fn end(lease: &mut v1::Lease, members: &BTreeMap<String, ToldMember>, reason: v1::EndReason) {
    if lease.state() != v1::LeaseState::Ending {
        lease.set_state(v1::LeaseState::Ending);
        lease.set_end_reason(reason);
        let donor = lease.placement.as_ref().map(|placement| &placement.donor);
        lease.donor_ready = donor.is_some_and(|donor| members.contains_key(donor));
        lease.origin_ready = members.contains_key(&lease.origin);
    }
}

/// Why an honest broker ends a lease now.
fn due_end(lease: &v1::Lease, now_ms: u64) -> Option<v1::EndReason> {
    match lease.state() {
        v1::LeaseState::Active => (now_ms > lease.expires_at_ms).then_some(v1::EndReason::Expired),
        v1::LeaseState::Placed | v1::LeaseState::Connecting => {
            (now_ms > lease.hold_until_ms).then_some(v1::EndReason::HoldExpired)
        }
        _ => None,
    }
}

fn is_same_step(one: &v1::Envelope, other: &v1::Envelope) -> bool {
    (&one.peering, one.epoch, &one.lease, &one.step, &one.to)
        == (&other.peering, other.epoch, &other.lease, &other.step, &other.to)
}

fn is_acknowledged(held: &v1::Envelope, ack: &v1::EnvelopeAck) -> bool {
    (&held.peering, held.epoch, &held.lease, &held.step, held.sequence)
        == (&ack.peering, ack.epoch, &ack.lease, &ack.step, ack.sequence)
}
