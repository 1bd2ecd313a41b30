//! The federation's state. Anyone may read it; only [`State::apply`] changes it, through a `Transition`.

mod chains;
pub(crate) mod cluster_sums;
pub mod encoding;
pub mod fairness;
pub(crate) mod gang;
pub mod gpu_time;
pub mod invariants;
pub(crate) mod notice;
pub mod occupancy;
pub(crate) mod offered;
pub(crate) mod queue;
pub(crate) mod reclaim_history;
pub(crate) mod replies_by_caller;
mod standing;
pub(crate) mod timers;
pub(crate) mod transition;
pub(crate) mod usable;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use comity_audit::{Head, NonceKey};
use comity_policy::{GpuTimeTable, UsageTable};
use comity_types::{
    ClassName, ClusterId, InstitutionId, LeaseId, LeaseState, NodeId, PeeringId, PriorityName, RequestId, RequestState,
    TenantId,
};
use serde::{Deserialize, Serialize};

use crate::collections::cow_map::CowMap;
use crate::model::amounts::Amounts;
use crate::model::broker_record::BrokerRecord;
use crate::model::cluster::Cluster;
use crate::model::envelope::{Envelope, EnvelopeKey};
use crate::model::idempotency::{self, StoredReply};
use crate::model::invite::Invite;
use crate::model::lease::Lease;
use crate::model::member_certificate::MemberCertificates;
use crate::model::peering::Peering;
use crate::model::policy_record::PolicyRecord;
use crate::model::provenance::Provenance;
use crate::model::request::Request;
use crate::model::revocation::{Exclusion, Revocation};
use crate::model::settings::Settings;
use crate::model::time::{Millis, Timestamp};
use crate::model::work::{WorkMix, WorkType};
use crate::state::cluster_sums::ClusterSums;
use crate::state::fairness::{Holdings, Ledger};
use crate::state::gpu_time::{GpuTimeLedger, all_booked};
use crate::state::occupancy::Occupancy;
use crate::state::offered::DeviceCounts;
use crate::state::queue::Queue;
use crate::state::reclaim_history::ReclaimHistory;
use crate::state::replies_by_caller::RepliesByCaller;
use crate::state::timers::{Due, Timers};
use crate::state::usable::Usable;

/// The federation's state, readable through [`Records`]. Its fields are private to this module, so that
/// [`State::apply`] is the only way to change it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct State {
    records: Records,
}

impl Deref for State {
    type Target = Records;

    fn deref(&self) -> &Records {
        &self.records
    }
}

impl From<Records> for State {
    /// Computes the indexes of the records.
    fn from(records: Records) -> Self {
        let mut state = Self { records };
        state.rebuild_derived();
        state
    }
}

/// All records of the state and, derived from them, their indexes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Records {
    /// Counts changes, without gaps.
    pub revision: u64,
    /// Log time. Only the command `rebase-time` can move it back.
    pub log_time: Timestamp,
    /// The policy bundle in force.
    pub policy: Option<PolicyRecord>,
    /// Where the policy comes from.
    #[serde(default, skip_serializing_if = "Provenance::is_empty")]
    pub provenance: Provenance,
    /// Member clusters.
    pub clusters: CowMap<ClusterId, Cluster>,
    /// Outstanding join tokens, by the SHA-256 of their secret in hex.
    pub invites: BTreeMap<String, Invite>,
    /// Requests. Ended ones are kept for a while.
    pub requests: CowMap<RequestId, Request>,
    /// Leases. Ended ones are kept for a while.
    pub leases: CowMap<LeaseId, Lease>,
    /// Peerings. Closed ones are kept for a while.
    pub peerings: CowMap<PeeringId, Peering>,
    /// Envelopes that their receivers have not acknowledged.
    pub envelopes: CowMap<EnvelopeKey, Envelope>,
    /// Replies kept for repeated calls.
    pub idempotency: CowMap<String, StoredReply>,
    /// Past use of tenants and institutions.
    pub fairness: Ledger,
    /// When leases were reclaimed for local need or a preemption.
    #[serde(default, skip_serializing_if = "ReclaimHistory::is_empty")]
    pub reclaims: ReclaimHistory,
    /// GPU-time of ended leases that counts against quotas.
    #[serde(default, skip_serializing_if = "GpuTimeLedger::is_empty")]
    pub gpu_time: GpuTimeLedger,
    /// When an overdue request last jumped the queue.
    pub last_overdue: Timestamp,
    /// Brokers of the group, past and present, by number; at most [`MAX_BROKERS`](crate::model::limits::MAX_BROKERS).
    pub brokers: BTreeMap<u64, BrokerRecord>,
    /// Number of revocations until now: the generation of certificates issued now.
    #[serde(default)]
    pub certificate_generation: u64,
    /// Revoked users, by name; at most [`MAX_REVOKED_USERS`](crate::model::limits::MAX_REVOKED_USERS).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub revoked_users: BTreeMap<String, Revocation>,
    /// The newest certificate of each member.
    #[serde(default, skip_serializing_if = "MemberCertificates::is_empty")]
    pub certificates: MemberCertificates,
    /// Suspended institutions; at most [`MAX_SUSPENSIONS`](crate::model::limits::MAX_SUSPENSIONS).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub suspensions: BTreeMap<InstitutionId, Exclusion>,
    /// Offset from leaders' log clocks to log time: the sum of all re-bases, in milliseconds.
    pub time_shift_ms: i64,
    /// When the last leader began its term.
    pub term_began: Timestamp,
    /// The end of the audit log, whose records leave [`State::apply`].
    pub audit: Head,
    /// Number after the last record that a collector has; 0 if none was given any.
    pub audit_exported: u64,
    /// The secret from which the nonces of its records are derived.
    pub(crate) nonce_key: NonceKey,
    pub(crate) next_request: u64,
    pub(crate) next_lease: u64,
    pub(crate) next_peering: u64,
    #[serde(skip)]
    pub(crate) derived: Derived,
}

/// Indexes and sums computed from the rest of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Derived {
    pub(crate) occupancy: Occupancy,
    pub(crate) usage: UsageTable,
    /// GPU-time that is used and booked.
    pub(crate) gpu_time: GpuTimeTable,
    pub(crate) classes: BTreeMap<ClusterId, BTreeMap<NodeId, Vec<Option<ClassName>>>>,
    pub(crate) device_counts: BTreeMap<ClusterId, DeviceCounts>,
    pub(crate) usable: Usable,
    pub(crate) timers: Timers,
    pub(crate) replies: RepliesByCaller,
    pub(crate) queued: BTreeSet<RequestId>,
    /// Number of waiting requests per tenant.
    pub(crate) queued_by: BTreeMap<TenantId, usize>,
    /// Number of waiting requests per institution of the policy in force.
    pub(crate) queued_by_institution: BTreeMap<String, usize>,
    pub(crate) queue: Queue,
    pub(crate) holdings: Holdings,
    /// Lendable capacity of each cluster's offer, and their total.
    pub(crate) capacities: BTreeMap<ClusterId, Amounts>,
    pub(crate) capacity: Amounts,
    pub(crate) cluster_sums: ClusterSums,
    pub(crate) work: WorkMix,
    pub(crate) live_leases: BTreeSet<LeaseId>,
    /// Leases under reclaim; they are still in force.
    pub(crate) reclaiming: BTreeSet<LeaseId>,
    /// Leases that still take capacity and will soon free it.
    pub(crate) departing: BTreeSet<LeaseId>,
    /// Waiting requests for which leases are or were reclaimed.
    pub(crate) reclaimed_for: BTreeSet<RequestId>,
    /// Running gangs with fewer members than desired.
    pub(crate) growing: BTreeSet<RequestId>,
    /// Peerings that accept leases, by origin and donor.
    pub(crate) pairs: BTreeMap<ClusterId, BTreeMap<ClusterId, PeeringId>>,
    pub(crate) by_cluster: BTreeMap<ClusterId, ClusterIndex>,
}

/// Live leases and peerings of one cluster, as origin or donor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterIndex {
    pub(crate) leases: BTreeSet<LeaseId>,
    pub(crate) peerings: BTreeSet<PeeringId>,
}

impl State {
    /// The institution that owns a cluster.
    pub(crate) fn institution_of_donor(&self, donor: &ClusterId) -> Option<InstitutionId> {
        let owner = self.policy.as_ref()?.bundle.institution_of_cluster(donor.as_str())?;
        InstitutionId::parse(owner, "institution").ok()
    }

    /// Recomputes all derived data, for instance after loading a snapshot.
    pub(crate) fn rebuild_derived(&mut self) {
        self.records.derived = Derived::of(self);
    }

    /// The capacity that leases take at each donor.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        &self.derived.occupancy
    }

    /// The use that counts against policy limits.
    #[must_use]
    pub fn usage(&self) -> &UsageTable {
        &self.derived.usage
    }

    /// The GPU-time that counts against quotas: used in the present periods, and booked by leases in force.
    #[must_use]
    pub fn gpu_time_booked(&self) -> &GpuTimeTable {
        &self.derived.gpu_time
    }

    /// GPU class of each device of a node, by index; `None` for devices without a class.
    #[must_use]
    pub fn device_classes(&self, cluster: &ClusterId, node: &NodeId) -> &[Option<ClassName>] {
        self.derived.classes.get(cluster).and_then(|nodes| nodes.get(node)).map_or(&[], Vec::as_slice)
    }

    /// Waiting requests, by id.
    pub fn queued(&self) -> impl Iterator<Item = (RequestId, &Request)> {
        self.derived.queued.iter().filter_map(|id| Some((*id, self.requests.get(id)?)))
    }

    /// Number of waiting requests.
    #[must_use]
    pub fn queued_len(&self) -> usize {
        self.derived.queued.len()
    }

    /// Number of waiting requests of a tenant.
    #[must_use]
    pub fn queued_of(&self, tenant: &TenantId) -> usize {
        self.derived.queued_by.get(tenant).copied().unwrap_or_default()
    }

    /// Number of waiting requests of an institution's tenants.
    #[must_use]
    pub fn queued_of_institution(&self, institution: &str) -> usize {
        self.derived.queued_by_institution.get(institution).copied().unwrap_or_default()
    }

    /// The mix of recent work.
    #[must_use]
    pub fn work(&self) -> &WorkMix {
        &self.derived.work
    }

    /// Leases that have not ended, by id.
    pub fn live_leases(&self) -> impl Iterator<Item = (LeaseId, &Lease)> {
        self.derived.live_leases.iter().filter_map(|id| Some((*id, self.leases.get(id)?)))
    }

    /// Leases under reclaim, by id. They are still in force.
    pub fn reclaiming(&self) -> impl Iterator<Item = (LeaseId, &Lease)> {
        self.derived.reclaiming.iter().filter_map(|id| Some((*id, self.leases.get(id)?)))
    }

    /// Leases that still take capacity and will soon free it, by id.
    pub(crate) fn departing(&self) -> impl Iterator<Item = (LeaseId, &Lease)> {
        self.derived.departing.iter().filter_map(|id| Some((*id, self.leases.get(id)?)))
    }

    /// Running gangs with fewer members than desired, by id.
    pub fn growing(&self) -> impl Iterator<Item = (RequestId, &Request)> {
        self.derived.growing.iter().filter_map(|id| Some((*id, self.requests.get(id)?)))
    }

    /// Leases of `cluster`, as origin or donor, that have not ended.
    pub fn leases_of(&self, cluster: &ClusterId) -> impl Iterator<Item = (LeaseId, &Lease)> {
        let index = self.derived.by_cluster.get(cluster);
        index.into_iter().flat_map(|index| &index.leases).filter_map(|id| Some((*id, self.leases.get(id)?)))
    }

    /// Peerings of `cluster` that are not closed.
    pub fn peerings_of(&self, cluster: &ClusterId) -> impl Iterator<Item = (PeeringId, &Peering)> {
        let index = self.derived.by_cluster.get(cluster);
        index.into_iter().flat_map(|index| &index.peerings).filter_map(|id| Some((*id, self.peerings.get(id)?)))
    }

    /// Envelopes that wait for `cluster` to fetch them.
    pub fn envelopes_for(&self, cluster: &ClusterId) -> impl Iterator<Item = &Envelope> {
        let from = EnvelopeKey {
            to: cluster.clone(),
            peering: PeeringId(0),
            epoch: 0,
            lease: None,
            step: crate::model::envelope::Step::Psk,
            sequence: 0,
        };
        self.envelopes.range(from..).take_while(move |(key, _)| key.to == *cluster).map(|(_, envelope)| envelope)
    }

    /// The peering from `origin` to `donor` that accepts new leases, if there is one.
    #[must_use]
    pub fn peering_between(&self, origin: &ClusterId, donor: &ClusterId) -> Option<(PeeringId, &Peering)> {
        let id = *self.derived.pairs.get(origin)?.get(donor)?;
        Some((id, self.peerings.get(&id)?))
    }

    /// The next deadline, at which the expirer proposes `Expire`. While requests wait, a change of policy by time alone
    /// is one, too: plans are made for log time, which passes with entries only.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let waiting = self.policy.as_ref().filter(|_| self.queued_len() > 0);
        let change = waiting.and_then(|record| record.bundle.next_change_ms(self.log_time.0)).map(Timestamp);
        self.derived.timers.next().into_iter().chain(change).min()
    }

    /// The timeouts in force.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings::of(self.policy.as_ref())
    }
}

impl Derived {
    pub(crate) fn of(state: &State) -> Self {
        let usage = state.policy.as_ref().map_or_else(UsageTable::default, |record| UsageTable::under(&record.bundle));
        let mut derived = Self { gpu_time: all_booked(state), usage, ..Self::default() };
        for (id, lease) in &state.leases {
            if lease.occupies() {
                derived.occupancy.take(&lease.placement);
                derived.cluster_sums.borrow(lease);
                derived.usage.add(&lease.as_use());
                derived.holdings.add(lease, state.institution_of_donor(&lease.placement.donor).as_ref());
            }
            derived.note_lease(*id, lease);
        }
        for (id, request) in &state.requests {
            derived.work.add(WorkType::of(request), 1);
            derived.note_request(*id, request, state.policy.as_ref());
            if gang::joinable_members(state, request) > 0 {
                derived.growing.insert(*id);
            }
            derived.timers.set(Due::IdleLeases(*id), gang::idle_due(state, request));
        }
        for (id, cluster) in &state.clusters {
            derived.note_offer(id, cluster, state.policy.as_ref());
        }
        let idle = state.settings().peering_idle;
        for (id, peering) in &state.peerings {
            derived.note_peering(*id, peering, idle);
        }
        for (key, envelope) in &state.envelopes {
            derived.timers.set(Due::Envelope(key.clone()), Some(envelope.expires_at));
        }
        for (hash, invite) in &state.invites {
            derived.timers.set(Due::Invite(hash.clone()), Some(invite.expires_at));
        }
        for (name, record) in &state.idempotency {
            derived.timers.set(Due::Idempotency(name.clone()), Some(record.at.after(idempotency::KEPT_FOR)));
            derived.replies.add(name, record);
        }
        derived
    }

    pub(crate) fn note_request(&mut self, id: RequestId, request: &Request, policy: Option<&PolicyRecord>) {
        let queued = request.state == RequestState::Queued;
        let tenant = &request.spec.tenant;
        let institution = || policy.and_then(|record| record.bundle.institution_of_tenant(tenant.as_str()));
        if queued && self.queued.insert(id) {
            *self.queued_by.entry(tenant.clone()).or_default() += 1;
            if let Some(institution) = institution() {
                *self.queued_by_institution.entry(institution.to_owned()).or_default() += 1;
            }
        } else if !queued && self.queued.remove(&id) {
            count_down(&mut self.queued_by, tenant);
            if let Some(institution) = institution() {
                count_down(&mut self.queued_by_institution, institution);
            }
        }
        if queued && request.room_at.is_some() {
            self.reclaimed_for.insert(id);
        } else {
            self.reclaimed_for.remove(&id);
        }
        let class = request.spec.priority.as_ref().map(PriorityName::as_str);
        let value = policy.map_or(0, |record| record.bundle.priority_value(class));
        self.queue.note(id, request, value);
        self.timers.set(Due::Request(id), request.due());
    }

    pub(crate) fn note_lease(&mut self, id: LeaseId, lease: &Lease) {
        self.timers.set(Due::Lease(id), lease.due());
        let note = |ids: &mut BTreeSet<LeaseId>, belongs: bool| if belongs { ids.insert(id) } else { ids.remove(&id) };
        note(&mut self.reclaiming, lease.state == LeaseState::Reclaiming);
        note(&mut self.departing, lease.departs());
        let live = lease.state != LeaseState::Ended;
        note(&mut self.live_leases, live);
        for cluster in [&lease.origin, &lease.placement.donor] {
            if live {
                self.by_cluster.entry(cluster.clone()).or_default().leases.insert(id);
            } else {
                self.prune_index(cluster, |index| index.leases.remove(&id));
            }
        }
    }

    pub(crate) fn note_peering(&mut self, id: PeeringId, peering: &Peering, idle: Millis) {
        use comity_types::PeeringState::{Closed, Draining, Established, Failed};
        let due = match peering.state {
            Draining | Closed => None,
            Failed => peering.retry_at,
            Established => peering.idle_since.map(|since| since.after(idle)),
            _ => peering.deadline,
        };
        self.timers.set(Due::Peering(id), due);
        if peering.state.accepts_leases() {
            self.pairs.entry(peering.origin.clone()).or_default().insert(peering.donor.clone(), id);
        } else if let Some(donors) = self.pairs.get_mut(&peering.origin)
            && donors.get(&peering.donor) == Some(&id)
        {
            donors.remove(&peering.donor);
            if donors.is_empty() {
                self.pairs.remove(&peering.origin);
            }
        }
        let live = peering.state != Closed;
        for cluster in [&peering.origin, &peering.donor] {
            if live {
                self.by_cluster.entry(cluster.clone()).or_default().peerings.insert(id);
            } else {
                self.prune_index(cluster, |index| index.peerings.remove(&id));
            }
        }
    }

    /// Removes something from a cluster's index, and the index once it is empty.
    fn prune_index(&mut self, cluster: &ClusterId, remove: impl FnOnce(&mut ClusterIndex) -> bool) {
        if let Some(index) = self.by_cluster.get_mut(cluster)
            && remove(index)
            && *index == ClusterIndex::default()
        {
            self.by_cluster.remove(cluster);
        }
    }
}

/// Counts one less, and removes a count of zero.
fn count_down<K: Ord + std::borrow::Borrow<Q>, Q: Ord + ?Sized>(counts: &mut BTreeMap<K, usize>, key: &Q) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
