//! A snapshot: the state as one plan sees it, with the plan's own placements.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use comity_policy::{
    Allowance, Booking, BorrowFacts, Bundle, Decision, Denial, GpuTimeFacts, GpuTimeTable, InUse, LeaseUse, LimitKey,
    QuotaDebt, QuotaUse, UsageTable, WaitingClaims,
};
use comity_types::{ClassName, ClusterId, DataNeed, Delivery, LeaseId, NodeId};

use crate::feasibility::advance_reservations::kept_view::KeptView;
use crate::feasibility::donors::link::Link;
use crate::feasibility::held_capacity::HeldCapacity;
use crate::model::demand::RequestSpec;
use crate::model::inventory::Node;
use crate::model::lease::Lease;
use crate::model::placement::Placement;
use crate::model::time::{Millis, Timestamp};
use crate::state::State;
use crate::state::gpu_time::KeptEnd;
use crate::state::notice::schedule_notice;
use crate::state::occupancy::{Changes, NodeOccupancy, Occupancy};
use crate::state::usable::Usable;

/// The state as one plan sees it, with the plan's own placements and releases.
#[derive(Clone)]
pub(crate) struct Snapshot<'a> {
    pub(crate) state: &'a State,
    pub(crate) bundle: &'a Bundle,
    /// Waiting requests behind the current one that may want MIG instances, oldest first.
    pub(crate) lookahead: Vec<&'a RequestSpec>,
    /// Whether to compute detailed reasons, which is costly.
    pub(crate) explains: bool,
    /// Whether this is the state [when idle](Self::when_idle).
    pub(crate) when_idle: bool,
    /// Thousandths of devices that the current request holds elsewhere or held earlier: limits per request count these
    /// too.
    pub(crate) beside_milli: u64,
    /// The end that the current request's lease takes over from another one.
    pub(crate) kept_end: Option<KeptEnd>,
    /// What donors keep for tenants.
    pub(crate) kept: KeptView<'a>,
    /// Replacements for nodes with less usable than offered capacity.
    usable: &'a Usable,
    /// Whether donors have only the nodes in `usable`.
    replacements_only: bool,
    occupancy: &'a Occupancy,
    /// Total occupancy of the nodes where this plan placed or released something.
    taken: BTreeMap<ClusterId, BTreeMap<NodeId, NodeOccupancy>>,
    /// Thousandths of devices that this plan placed and released, by donor.
    changed_milli: BTreeMap<ClusterId, (u64, u64)>,
    usage: Cow<'a, UsageTable>,
    gpu_time: Cow<'a, GpuTimeTable>,
    /// Links from the origin queried last to every member cluster, sorted by id.
    links: RefCell<(Option<ClusterId>, Vec<Link>)>,
    /// The node looked up last: one decision queries the same node repeatedly.
    last_node: Cell<Option<CachedNode<'a>>>,
}

/// A cached node lookup.
#[derive(Clone, Copy)]
struct CachedNode<'a> {
    donor: &'a ClusterId,
    id: &'a NodeId,
    node: &'a Node,
    /// Occupancy by leases.
    leased: Option<&'a NodeOccupancy>,
    /// The node's number in the offer, if it was looked up by number.
    number: Option<u32>,
}

/// A borrowing query to policy, apart from the donor.
#[derive(Clone, Copy)]
pub(crate) struct PolicyQuery<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) user: &'a str,
    pub(crate) origin: &'a ClusterId,
    pub(crate) class: &'a ClassName,
    pub(crate) milli: u64,
    pub(crate) delivery: Delivery,
    pub(crate) duration: Millis,
    pub(crate) data: &'a [DataNeed],
    pub(crate) purpose: &'a str,
    /// Whether the lease may be reclaimed with notice at the end of a schedule.
    pub(crate) preemptible: bool,
}

impl<'a> PolicyQuery<'a> {
    pub(crate) fn of(spec: &'a RequestSpec, class: &'a ClassName, milli: u64) -> Self {
        Self {
            tenant: spec.tenant.as_str(),
            user: &spec.submitted_by,
            origin: &spec.origin,
            class,
            milli,
            delivery: spec.delivery,
            duration: spec.duration,
            data: &spec.data,
            purpose: &spec.purpose,
            preemptible: spec.preemptible.is_some(),
        }
    }
}

impl<'a> Snapshot<'a> {
    /// `None` while no policy bundle is in force, since then nothing may be lent.
    pub(crate) fn new(state: &'a State) -> Option<Self> {
        let bundle = &*state.policy.as_ref()?.bundle;
        let (occupancy, usage) = (state.occupancy(), Cow::Borrowed(state.usage()));
        Some(Self {
            state,
            bundle,
            lookahead: Vec::new(),
            explains: false,
            when_idle: false,
            beside_milli: 0,
            kept_end: None,
            kept: KeptView::default(),
            usable: &state.derived.usable,
            replacements_only: false,
            occupancy,
            taken: BTreeMap::new(),
            changed_milli: BTreeMap::new(),
            usage,
            gpu_time: Cow::Borrowed(state.gpu_time_booked()),
            links: RefCell::default(),
            last_node: Cell::new(None),
        })
    }

    /// The same snapshot with other replacements for nodes.
    pub(crate) fn with_usable<'b>(self, usable: &'b Usable) -> Snapshot<'b>
    where
        'a: 'b,
    {
        Snapshot {
            state: self.state,
            bundle: self.bundle,
            lookahead: self.lookahead,
            explains: self.explains,
            when_idle: self.when_idle,
            beside_milli: self.beside_milli,
            kept_end: self.kept_end,
            kept: self.kept.with_other_nodes(),
            usable,
            replacements_only: self.replacements_only,
            occupancy: self.occupancy,
            taken: self.taken,
            changed_milli: self.changed_milli,
            usage: self.usage,
            gpu_time: self.gpu_time,
            links: self.links,
            last_node: Cell::new(None),
        }
    }

    /// The same snapshot without any lease, with `nodes` in place of the nodes offered, and as if every agent answered.
    pub(crate) fn when_idle<'b>(self, nodes: &'b Usable, no_leases: &'b Occupancy) -> Snapshot<'b>
    where
        'a: 'b,
    {
        let mut idle = self.with_usable(nodes);
        idle.when_idle = true;
        idle.occupancy = no_leases;
        idle.usage = Cow::Owned(UsageTable::under(idle.bundle));
        idle.gpu_time = Cow::Owned(GpuTimeTable::default());
        idle.taken.clear();
        idle.changed_milli.clear();
        idle
    }

    /// The same snapshot, as if donors had only the nodes that replace others.
    pub(crate) fn with_replacements_only(mut self) -> Self {
        self.replacements_only = true;
        self
    }

    /// Whether node replacements are those of the state.
    pub(crate) fn uses_actual_nodes(&self) -> bool {
        std::ptr::eq(self.usable, &raw const self.state.derived.usable)
    }

    pub(crate) fn occupancy(&self, donor: &ClusterId, node: &NodeId) -> Option<&NodeOccupancy> {
        let taken = self.taken.get(donor).and_then(|nodes| nodes.get(node));
        taken.or_else(|| self.leased(donor, node))
    }

    /// Occupancy of a node by leases, without this plan's changes.
    fn leased(&self, donor: &ClusterId, node: &NodeId) -> Option<&'a NodeOccupancy> {
        match self.cached(donor, node) {
            Some(looked) => looked.leased,
            None => self.occupancy.node(donor, node),
        }
    }

    fn cached(&self, donor: &ClusterId, id: &NodeId) -> Option<CachedNode<'a>> {
        self.last_node.get().filter(|looked| looked.id == id && looked.donor == donor)
    }

    /// Occupancy changes of a donor's nodes, without this plan's changes.
    pub(crate) fn changes(&self, donor: &ClusterId) -> &'a Changes {
        self.occupancy.changes(donor)
    }

    pub(crate) fn lent_milli(&self, donor: &ClusterId) -> u64 {
        let (placed, released) = self.changed_milli.get(donor).copied().unwrap_or_default();
        self.occupancy.lent_milli(donor).saturating_add(placed).saturating_sub(released)
    }

    /// Whether `other` has the same free capacity and the same usage, and counts the same against reservations.
    pub(crate) fn has_same_capacity(&self, other: &Self) -> bool {
        let nothing = NodeOccupancy::default();
        let same_node = |donor: &ClusterId, id: &NodeId| {
            self.occupancy(donor, id).unwrap_or(&nothing) == other.occupancy(donor, id).unwrap_or(&nothing)
        };
        let mut donors = [&self.taken, &other.taken].into_iter().flatten();
        *self.usage == *other.usage
            && *self.gpu_time == *other.gpu_time
            && self.kept.has_same_changes(&other.kept)
            && donors.all(|(donor, nodes)| {
                self.lent_milli(donor) == other.lent_milli(donor) && nodes.keys().all(|id| same_node(donor, id))
            })
    }

    /// The usable nodes of a donor's offer, with the class of each device.
    pub(crate) fn nodes(
        &self,
        donor: &ClusterId,
    ) -> impl Iterator<Item = (&'a NodeId, &'a Node, &'a [Option<ClassName>])> {
        let state = self.state;
        let offer = state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref());
        let instead = self.usable.get(donor);
        let donor = donor.clone();
        let replacements = instead.filter(|_| self.replacements_only).into_iter().flatten();
        let offered = offer.filter(|_| !self.replacements_only).into_iter().flat_map(|offer| &offer.nodes);
        let offered = offered.map(move |(id, node)| (id, instead.and_then(|nodes| nodes.get(id)).unwrap_or(node)));
        replacements.chain(offered).map(move |(id, node)| (id, node, state.device_classes(&donor, id)))
    }

    pub(crate) fn node(&self, donor: &ClusterId, id: &NodeId) -> Option<&'a Node> {
        if let Some(looked) = self.cached(donor, id) {
            return Some(looked.node);
        }
        let (donor, cluster) = self.state.clusters.get_key_value(donor)?;
        let offered = || {
            let nodes = &cluster.offer.as_ref()?.nodes;
            nodes.get_indexed(nodes.find_index(id).ok()?)
        };
        let instead = self.usable.get(donor).and_then(|nodes| nodes.get_key_value(id));
        let (id, node) = instead.or_else(offered)?;
        self.last_node.set(Some(CachedNode { donor, id, node, leased: self.occupancy.node(donor, id), number: None }));
        Some(node)
    }

    /// Finds a node by its number in the offer.
    pub(crate) fn node_numbered(&self, donor: &ClusterId, number: u32) -> Option<(&'a NodeId, &'a Node)> {
        let matches = |cached: &CachedNode<'a>| cached.number == Some(number) && cached.donor == donor;
        if let Some(cached) = self.last_node.get().filter(matches) {
            return Some((cached.id, cached.node));
        }
        let (donor, cluster) = self.state.clusters.get_key_value(donor)?;
        let (id, node) = cluster.offer.as_ref()?.nodes.get_indexed(number as usize)?;
        let node = self.usable.get(donor).and_then(|nodes| nodes.get(id)).unwrap_or(node);
        let leased = self.occupancy.node(donor, id);
        self.last_node.set(Some(CachedNode { donor, id, node, leased, number: Some(number) }));
        Some((id, node))
    }

    /// The number of a node, if it was looked up last, and by number.
    pub(crate) fn cached_number(&self, donor: &ClusterId, id: &NodeId) -> Option<u32> {
        self.cached(donor, id)?.number
    }

    /// Calls `look` with the links from an origin to every member cluster, sorted by id.
    pub(crate) fn with_links_from<T>(&self, origin: &ClusterId, look: impl FnOnce(&[Link]) -> T) -> T {
        let mut links = self.links.borrow_mut();
        if links.0.as_ref() != Some(origin) {
            let members = self.state.clusters.keys();
            let between = members.map(|donor| Link::of(self.state.peering_between(origin, donor))).collect();
            *links = (Some(origin.clone()), between);
        }
        look(&links.1)
    }

    /// Asks policy: returns the agreement that permits the loan, or the reason against it.
    pub(crate) fn may_borrow(&self, donor: &ClusterId, ask: PolicyQuery<'_>) -> Result<Option<&'a str>, Box<Denial>> {
        self.bundle.may_borrow_under(&self.borrow_facts(donor, ask))
    }

    /// As [`may_borrow`](Self::may_borrow), with the documents behind an allowance.
    pub(crate) fn allowance(&self, donor: &ClusterId, ask: PolicyQuery<'_>) -> Result<Allowance, Box<Denial>> {
        match self.bundle.may_borrow(&self.borrow_facts(donor, ask)) {
            Decision::Allow(allowance) => Ok(allowance),
            Decision::Deny(denial) => Err(Box::new(denial)),
        }
    }

    /// What rules of policy warn of; nothing if policy does not permit the loan.
    pub(crate) fn rule_warnings(&self, donor: &ClusterId, ask: PolicyQuery<'_>) -> Vec<String> {
        let facts = self.borrow_facts(donor, ask);
        let permitted = self.bundle.may_borrow_under(&facts);
        permitted.map_or_else(|_| Vec::new(), |agreement| self.bundle.rule_warnings(&facts, agreement))
    }

    /// The limits of quotas that count a loan, from whatever donor.
    pub(crate) fn quota_uses(&self, ask: PolicyQuery<'_>) -> Vec<QuotaUse> {
        self.bundle.quota_uses(&self.borrow_facts(ask.origin, ask))
    }

    /// What others must give back before a loan fits that is within its nominal quotas.
    pub(crate) fn quota_debt(&self, ask: PolicyQuery<'_>) -> Option<QuotaDebt<'a>> {
        self.bundle.quota_debt(&self.borrow_facts(ask.origin, ask), &self.usage)
    }

    /// Whether a loan borrows quota that waiting requests need which are within their own.
    pub(crate) fn borrows_what_others_need(&self, ask: PolicyQuery<'_>, waiting: &WaitingClaims<'_>) -> bool {
        self.bundle.borrows_what_others_need(&self.borrow_facts(ask.origin, ask), &self.usage, waiting)
    }

    fn borrow_facts<'s>(&'s self, donor: &'s ClusterId, ask: PolicyQuery<'s>) -> BorrowFacts<'s> {
        let institution = self.bundle.tenants.get(ask.tenant).map_or("", |tenant| tenant.spec.institution.as_str());
        BorrowFacts {
            tenant: ask.tenant,
            user: ask.user,
            origin_cluster: ask.origin.as_str(),
            donor_cluster: donor.as_str(),
            class: ask.class.as_str(),
            gpus_milli: ask.milli,
            beside_milli: self.beside_milli,
            delivery: ask.delivery,
            duration_ms: ask.duration.0,
            notice_ms: ask.preemptible.then(|| schedule_notice(self.bundle, donor).0),
            now_ms: self.state.log_time.0,
            data: ask.data,
            purpose: ask.purpose,
            in_use: InUse {
                gpu_time: Some(self.gpu_time_facts(ask.milli, ask.duration)),
                ..self.usage.in_use(ask.tenant, institution, ask.user, donor.as_str())
            },
        }
    }

    /// The GPU-time that a lease placed now would book.
    fn gpu_time_facts(&self, milli: u64, duration: Millis) -> GpuTimeFacts<'_> {
        let booked = &*self.gpu_time;
        match self.kept_end {
            Some(KeptEnd { until, counted_milli }) => {
                let gpus_milli = milli.saturating_sub(counted_milli);
                GpuTimeFacts { booked, gpus_milli, until_ms: until.0, most_ms: u64::MAX }
            }
            None => {
                let until = self.state.log_time.after(self.state.settings().hold).after(duration);
                GpuTimeFacts { booked, gpus_milli: milli, until_ms: until.0, most_ms: duration.0 }
            }
        }
    }

    /// Books the GPU-time of a placement.
    fn book(&mut self, spec: &RequestSpec, class: &ClassName, milli: u64) {
        self.change_booked(spec, class, milli, |booked, (key, start_ms, time)| booked.add(key, start_ms, time));
    }

    /// Undoes the booking of [`take`](Self::take) with the same [`kept_end`](Self::kept_end).
    pub(crate) fn unbook(&mut self, spec: &RequestSpec, class: &ClassName, milli: u64) {
        self.change_booked(spec, class, milli, |booked, (key, start_ms, time)| booked.remove(key, start_ms, time));
    }

    fn change_booked(
        &mut self,
        spec: &RequestSpec,
        class: &ClassName,
        milli: u64,
        change: impl Fn(&mut GpuTimeTable, (LimitKey<'_>, u64, u128)),
    ) {
        let (bundle, tenant) = (self.bundle, spec.tenant.as_str());
        if !bundle.limits_gpu_time_of(tenant) {
            return;
        }
        let GpuTimeFacts { booked: _, gpus_milli, until_ms, most_ms } = self.gpu_time_facts(milli, spec.duration);
        let (from_ms, class) = (self.state.log_time.0, class.as_str());
        let user = spec.submitted_by.as_str();
        let booking = Booking { tenant, user, class, gpus_milli, from_ms, until_ms, most_ms };
        let booked = self.gpu_time.to_mut();
        bundle.for_each_period(&booking, |key, span, time| change(booked, (key, span.start_ms, time)));
    }

    /// Takes a placement, so that the plan's next request sees it.
    pub(crate) fn take(
        &mut self,
        spec: &RequestSpec,
        class: &ClassName,
        agreement: Option<&str>,
        placement: &Placement,
    ) {
        let tenant = spec.tenant.as_str();
        let donor = &placement.donor;
        for (id, part) in &placement.nodes {
            let before = self.leased(donor, id);
            let taken = self.taken.entry(donor.clone()).or_default().entry(id.clone());
            let taken = taken.or_insert_with(|| before.cloned().unwrap_or_default());
            taken.take(part, placement.profile.as_deref());
        }
        let (placed, _) = self.changed_milli.entry(donor.clone()).or_default();
        *placed = placed.saturating_add(placement.milli());
        let institution = self.bundle.tenants.get(tenant).map_or("", |tenant| tenant.spec.institution.as_str());
        self.usage.to_mut().add(&LeaseUse {
            tenant,
            user: &spec.submitted_by,
            institution,
            donor: placement.donor.as_str(),
            class: class.as_str(),
            agreement,
            gpus_milli: placement.milli(),
            replaced: false,
        });
        self.note_kept(spec, class, placement);
        self.book(spec, class, placement.milli());
    }

    /// Releases held capacity, as if its end had come. What it booked of GPU-time stays used.
    pub(crate) fn release(&mut self, held: &HeldCapacity<'_>) {
        let (donor, placement) = (&held.placement.donor, held.placement);
        let taken = self.taken.entry(donor.clone()).or_default();
        for (id, part) in &placement.nodes {
            let before = || self.occupancy.node(donor, id).cloned().unwrap_or_default();
            taken.entry(id.clone()).or_insert_with(before).give_back(part, placement.profile.as_deref());
        }
        let (_, released) = self.changed_milli.entry(donor.clone()).or_default();
        *released = released.saturating_add(held.counts.gpus_milli);
        self.usage.to_mut().remove(&held.counts);
        if self.bundle.has_reservations_at(donor.as_str()) {
            self.kept.note_released(held);
        }
    }

    /// Releases a lease, as if its end had come.
    pub(crate) fn release_lease(&mut self, id: LeaseId, lease: &Lease) {
        self.release(&HeldCapacity::of_lease(id, lease, Timestamp(0)));
    }

    /// Counts the least GPUs of a request against its quotas, as if it had started at a donor.
    pub(crate) fn count_claim(&mut self, spec: &RequestSpec, donor: &ClusterId) {
        let Some(class) = self.cohort_class_of(spec) else { return };
        let (tenant, gpus_milli) = (spec.tenant.as_str(), spec.least_milli());
        let institution = self.bundle.institution_of_tenant(tenant).unwrap_or_default();
        let (user, donor) = (spec.submitted_by.as_str(), donor.as_str());
        let agreement = None;
        let counts = LeaseUse { tenant, user, institution, donor, class, agreement, gpus_milli, replaced: false };
        self.usage.to_mut().add(&counts);
    }

    /// Excludes a lease from usage that counts against limits, for its renewal or replacement.
    pub(crate) fn exclude(&mut self, lease: &Lease) {
        self.usage.to_mut().remove(&lease.as_use());
    }

    /// Excludes a request's whole chain of leases: the last is to be replaced, and it replaces the others.
    pub(crate) fn exclude_chain(&mut self, chain: &[LeaseId]) {
        let state = self.state;
        chain.iter().filter_map(|id| state.leases.get(id)).for_each(|lease| self.exclude(lease));
    }

    /// Marks the usage of a lease as replaced.
    pub(crate) fn mark_replaced(&mut self, lease: &Lease) {
        self.exclude(lease);
        self.usage.to_mut().add(&LeaseUse { replaced: true, ..lease.as_use() });
    }

    /// Undoes [`mark_replaced`](Self::mark_replaced).
    pub(crate) fn unmark_replaced(&mut self, lease: &Lease) {
        self.usage.to_mut().remove(&LeaseUse { replaced: true, ..lease.as_use() });
        self.restore(lease);
    }

    /// Undoes [`exclude_chain`](Self::exclude_chain).
    pub(crate) fn restore_chain(&mut self, chain: &[LeaseId]) {
        let state = self.state;
        chain.iter().filter_map(|id| state.leases.get(id)).for_each(|lease| self.restore(lease));
    }

    fn restore(&mut self, lease: &Lease) {
        self.usage.to_mut().add(&lease.as_use());
    }
}
