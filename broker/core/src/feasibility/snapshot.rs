//! What one matching run sees: the state, plus what it has placed so far itself.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use comity_policy::{BorrowFacts, Bundle, Denial, LeaseUse, UsageTable};

use crate::feasibility::donors::link::Link;
use crate::model::demand::{Delivery, RequestSpec};
use crate::model::id::{ClassName, ClusterId, LeaseId, NodeId};
use crate::model::inventory::Node;
use crate::model::lease::Lease;
use crate::model::placement::Placement;
use crate::model::time::{Millis, Timestamp};
use crate::state::State;
use crate::state::occupancy::{Changes, NodeOccupancy, Occupancy};
use crate::state::usable::Usable;

/// A matching run's snapshot.
#[derive(Clone)]
pub(crate) struct Snapshot<'a> {
    pub(crate) state: &'a State,
    pub(crate) bundle: &'a Bundle,
    /// Requests that wait behind the one that is being placed and may want MIG instances, the oldest first.
    pub(crate) lookahead: Vec<&'a RequestSpec>,
    /// Whether somebody reads the reasons.
    pub(crate) explains: bool,
    /// Thousandths that the request which is looked at holds at other donors, or came to hold earlier: limits on one
    /// request count them too.
    pub(crate) beside_milli: u64,
    /// What stands for nodes of which less may be used than is offered.
    usable: &'a Usable,
    occupancy: &'a Occupancy,
    /// Nodes of which this run has placed or released something, with all that is lent of them.
    taken: BTreeMap<ClusterId, BTreeMap<NodeId, NodeOccupancy>>,
    /// Thousandths that this run has placed and released, by donor.
    moved_milli: BTreeMap<ClusterId, (u64, u64)>,
    usage: Cow<'a, UsageTable>,
    /// What lies between the origin that asked last and each member cluster, in the order of ids.
    lines: RefCell<(Option<ClusterId>, Vec<Link>)>,
    /// The node that was looked up last: one decision asks for the same one again and again.
    last: Cell<Option<Looked<'a>>>,
}

/// A node that was looked up among many.
#[derive(Clone, Copy)]
struct Looked<'a> {
    donor: &'a ClusterId,
    id: &'a NodeId,
    node: &'a Node,
    /// What leases take of it.
    lent: Option<&'a NodeOccupancy>,
    /// Its number among the nodes of the offer, if it was looked up by that.
    number: Option<u32>,
}

/// Something that is held until a known end: a lease, or what this run has placed.
#[derive(Clone)]
pub(crate) struct HeldCapacity<'p> {
    /// When it ends at the latest, unless it is renewed.
    pub(crate) end: Timestamp,
    /// As it counts against limits.
    pub(crate) counts: LeaseUse<'p>,
    /// What it takes.
    pub(crate) placement: &'p Placement,
}

/// Who asks for how much for how long: what policy wants to know besides the donor.
#[derive(Clone, Copy)]
pub(crate) struct PolicyQuery<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) origin: &'a ClusterId,
    pub(crate) class: &'a ClassName,
    pub(crate) milli: u64,
    pub(crate) delivery: Delivery,
    pub(crate) duration: Millis,
}

impl<'a> Snapshot<'a> {
    /// `None` while no policy bundle is in force: then nothing may be lent.
    pub(crate) fn new(state: &'a State) -> Option<Self> {
        let bundle = &*state.policy.as_ref()?.bundle;
        let (occupancy, usage) = (state.occupancy(), Cow::Borrowed(state.usage()));
        Some(Self {
            state,
            bundle,
            lookahead: Vec::new(),
            explains: false,
            beside_milli: 0,
            usable: &state.derived.usable,
            occupancy,
            taken: BTreeMap::new(),
            moved_milli: BTreeMap::new(),
            usage,
            lines: RefCell::default(),
            last: Cell::new(None),
        })
    }

    /// The same where other nodes may be used, or more of them.
    pub(crate) fn where_usable<'b>(self, usable: &'b Usable) -> Snapshot<'b>
    where
        'a: 'b,
    {
        Snapshot {
            state: self.state,
            bundle: self.bundle,
            lookahead: self.lookahead,
            explains: self.explains,
            beside_milli: self.beside_milli,
            usable,
            occupancy: self.occupancy,
            taken: self.taken,
            moved_milli: self.moved_milli,
            usage: self.usage,
            lines: self.lines,
            last: Cell::new(None),
        }
    }

    /// Whether nodes are seen as they may be used now.
    pub(crate) fn is_as_usable(&self) -> bool {
        std::ptr::eq(self.usable, &raw const self.state.derived.usable)
    }

    pub(crate) fn occupancy(&self, donor: &ClusterId, node: &NodeId) -> Option<&NodeOccupancy> {
        let taken = self.taken.get(donor).and_then(|nodes| nodes.get(node));
        taken.or_else(|| self.lent(donor, node))
    }

    /// What leases take of a node, without what this run has placed.
    fn lent(&self, donor: &ClusterId, node: &NodeId) -> Option<&'a NodeOccupancy> {
        match self.looked_at(donor, node) {
            Some(looked) => looked.lent,
            None => self.occupancy.node(donor, node),
        }
    }

    /// The node that was looked up last, if it is this one.
    fn looked_at(&self, donor: &ClusterId, id: &NodeId) -> Option<Looked<'a>> {
        self.last.get().filter(|looked| looked.id == id && looked.donor == donor)
    }

    /// Which nodes of a donor leases came to or left, without what this run has placed.
    pub(crate) fn changes(&self, donor: &ClusterId) -> &'a Changes {
        self.occupancy.changes(donor)
    }

    pub(crate) fn lent_milli(&self, donor: &ClusterId) -> u64 {
        let (placed, released) = self.moved_milli.get(donor).copied().unwrap_or_default();
        self.occupancy.lent_milli(donor).saturating_add(placed).saturating_sub(released)
    }

    /// Nodes of a donor's offer, as they may be used, with the class of each device.
    pub(crate) fn nodes(
        &self,
        donor: &ClusterId,
    ) -> impl Iterator<Item = (&'a NodeId, &'a Node, &'a [Option<ClassName>])> {
        let state = self.state;
        let offer = state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref());
        let instead = self.usable.get(donor);
        let donor = donor.clone();
        offer.into_iter().flat_map(|offer| &offer.nodes).map(move |(id, node)| {
            let used = instead.and_then(|nodes| nodes.get(id)).unwrap_or(node);
            (id, used, state.device_classes(&donor, id))
        })
    }

    /// A node of a donor's offer as it may be used.
    pub(crate) fn node(&self, donor: &ClusterId, id: &NodeId) -> Option<&'a Node> {
        if let Some(looked) = self.looked_at(donor, id) {
            return Some(looked.node);
        }
        let (donor, cluster) = self.state.clusters.get_key_value(donor)?;
        let offered = || {
            let nodes = &cluster.offer.as_ref()?.nodes;
            nodes.get_indexed(nodes.find_index(id).ok()?)
        };
        let instead = self.usable.get(donor).and_then(|nodes| nodes.get_key_value(id));
        let (id, node) = instead.or_else(offered)?;
        self.last.set(Some(Looked { donor, id, node, lent: self.occupancy.node(donor, id), number: None }));
        Some(node)
    }

    /// The node of that number among those of a donor's offer, as it may be used.
    pub(crate) fn node_numbered(&self, donor: &ClusterId, number: u32) -> Option<(&'a NodeId, &'a Node)> {
        let is_it = |looked: &Looked<'a>| looked.number == Some(number) && looked.donor == donor;
        if let Some(looked) = self.last.get().filter(is_it) {
            return Some((looked.id, looked.node));
        }
        let (donor, cluster) = self.state.clusters.get_key_value(donor)?;
        let (id, node) = cluster.offer.as_ref()?.nodes.get_indexed(number as usize)?;
        let node = self.usable.get(donor).and_then(|nodes| nodes.get(id)).unwrap_or(node);
        let lent = self.occupancy.node(donor, id);
        self.last.set(Some(Looked { donor, id, node, lent, number: Some(number) }));
        Some((id, node))
    }

    /// The number of the node that was looked up last, if it is this one and was looked up by its number.
    pub(crate) fn number_looked_at(&self, donor: &ClusterId, id: &NodeId) -> Option<u32> {
        self.looked_at(donor, id)?.number
    }

    /// Looks at what lies between an origin and each member cluster, in the order of ids.
    pub(crate) fn lines_from<T>(&self, origin: &ClusterId, look: impl FnOnce(&[Link]) -> T) -> T {
        let mut lines = self.lines.borrow_mut();
        if lines.0.as_ref() != Some(origin) {
            let members = self.state.clusters.keys();
            let between = members.map(|donor| Link::of(self.state.peering_between(origin, donor))).collect();
            *lines = (Some(origin.clone()), between);
        }
        look(&lines.1)
    }

    /// What policy says to `ask` at `donor`: the agreement, or the reason against it.
    pub(crate) fn may_borrow(&self, donor: &ClusterId, ask: PolicyQuery<'_>) -> Result<Option<&'a str>, Box<Denial>> {
        let institution = self.bundle.tenants.get(ask.tenant).map_or("", |tenant| tenant.spec.institution.as_str());
        self.bundle.may_borrow_under(&BorrowFacts {
            tenant: ask.tenant,
            origin_cluster: ask.origin.as_str(),
            donor_cluster: donor.as_str(),
            class: ask.class.as_str(),
            gpus_milli: ask.milli,
            beside_milli: self.beside_milli,
            delivery: ask.delivery.kind(),
            duration_ms: ask.duration.0,
            now_ms: self.state.log_time.0,
            in_use: self.usage.in_use(ask.tenant, institution, donor.as_str(), ask.class.as_str()),
        })
    }

    /// Counts a placement in, so that the next request of this run sees it.
    pub(crate) fn take(&mut self, tenant: &str, class: &ClassName, agreement: Option<&str>, placement: &Placement) {
        let donor = &placement.donor;
        for (id, part) in &placement.nodes {
            let before = self.lent(donor, id);
            let taken = self.taken.entry(donor.clone()).or_default().entry(id.clone());
            let taken = taken.or_insert_with(|| before.cloned().unwrap_or_default());
            taken.take(part, placement.profile.as_deref());
        }
        let (placed, _) = self.moved_milli.entry(donor.clone()).or_default();
        *placed = placed.saturating_add(placement.milli());
        let institution = self.bundle.tenants.get(tenant).map_or("", |tenant| tenant.spec.institution.as_str());
        self.usage.to_mut().add(&LeaseUse {
            tenant,
            institution,
            donor: placement.donor.as_str(),
            class: class.as_str(),
            agreement,
            gpus_milli: placement.milli(),
            replaced: false,
        });
    }

    /// Counts what is held out, as if its end had come.
    pub(crate) fn release(&mut self, held: &HeldCapacity<'_>) {
        let (donor, placement) = (&held.placement.donor, held.placement);
        let taken = self.taken.entry(donor.clone()).or_default();
        for (id, part) in &placement.nodes {
            let before = || self.occupancy.node(donor, id).cloned().unwrap_or_default();
            taken.entry(id.clone()).or_insert_with(before).give_back(part, placement.profile.as_deref());
        }
        let (_, released) = self.moved_milli.entry(donor.clone()).or_default();
        *released = released.saturating_add(held.counts.gpus_milli);
        self.usage.to_mut().remove(&held.counts);
    }

    /// Counts a lease out of what counts against limits: what a renewal is measured against, and what replaces it.
    pub(crate) fn without(&mut self, lease: &Lease) {
        self.usage.to_mut().remove(&lease.as_use());
    }

    /// The same of a whole chain of a request: the last lease of it is to be replaced, and the others are by that.
    pub(crate) fn without_chain(&mut self, chain: &[LeaseId]) {
        let state = self.state;
        chain.iter().filter_map(|id| state.leases.get(id)).for_each(|lease| self.without(lease));
    }

    /// Counts a lease as one that is replaced from now on.
    pub(crate) fn with_replaced(&mut self, lease: &Lease) {
        self.without(lease);
        self.usage.to_mut().add(&LeaseUse { replaced: true, ..lease.as_use() });
    }

    /// Counts them in again.
    pub(crate) fn with_chain_again(&mut self, chain: &[LeaseId]) {
        let state = self.state;
        chain.iter().filter_map(|id| state.leases.get(id)).for_each(|lease| self.with_again(lease));
    }

    /// Counts it in again.
    fn with_again(&mut self, lease: &Lease) {
        self.usage.to_mut().add(&lease.as_use());
    }
}
