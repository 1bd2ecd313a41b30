//! Chains of leases that replace one another, of single leases and of gangs; and parts of gangs that fail.

use std::collections::BTreeSet;

use comity_core::command::Expire;
use comity_core::demand::{Members, RequestSpec, Share};
use comity_core::inventory::{Fault, FaultClass, Sharing};
use comity_core::lease::Lease;
use comity_core::limits::MAX_REPLACED;
use comity_core::scheduler::reclaims_at;
use comity_core::{Command, Millis};
use comity_types::{EndReason, LeaseId, LeaseState, NodeId, RequestId, RequestState};

use super::federation::{Federation, cluster, device, node, offer, spec};

/// A federation with nodes of four GPUs, which tests let fail.
struct Failing {
    it: Federation,
    generation: u64,
    /// Nodes that do not answer.
    silent: BTreeSet<NodeId>,
    /// Nodes whose first device is gone.
    lost: BTreeSet<NodeId>,
    offers: Vec<(&'static str, Vec<&'static str>)>,
}

impl Failing {
    fn with(offers: &[(&'static str, &[&'static str])]) -> Self {
        let mut it = Federation::ready();
        it.offer("north", offer(2, &[]));
        it.offer("south", offer(2, &[]));
        let mut failing =
            Self { it, generation: 2, silent: BTreeSet::new(), lost: BTreeSet::new(), offers: Vec::new() };
        failing.have(offers);
        failing
    }

    /// Gives the donors these nodes.
    fn have(&mut self, offers: &[(&'static str, &[&'static str])]) {
        self.offers = offers.iter().map(|(donor, nodes)| (*donor, nodes.to_vec())).collect();
        self.advertise();
    }

    fn advertise(&mut self) {
        self.generation += 1;
        for (donor, names) in self.offers.clone() {
            let nodes: Vec<_> = names.iter().map(|name| (*name, 4, device(81_559, Sharing::Exclusive))).collect();
            let mut made = offer(self.generation, &nodes);
            for (id, has) in &mut made.nodes {
                has.ready = !self.silent.contains(id);
                if self.lost.contains(id) {
                    has.devices[0].healthy = false;
                    has.devices[0].fault = Some(Fault { class: FaultClass::Lost, message: "XID 79".to_owned() });
                }
            }
            self.it.offer(donor, made);
        }
    }

    fn lease(&self, id: LeaseId) -> &Lease {
        &self.it.state.leases[&id]
    }

    /// First node of a lease.
    fn node_of(&self, id: LeaseId) -> NodeId {
        self.lease(id).placement.nodes.keys().next().unwrap().clone()
    }

    fn reclaim(&mut self) {
        for (donor, _) in self.offers.clone() {
            let found = reclaims_at(&self.it.state, &cluster(donor), self.it.state.log_time);
            self.it.reclaim(found);
        }
    }

    /// Makes a node of this lease unready, for which the leader reclaims the lease.
    fn fails(&mut self, id: LeaseId) {
        let node = self.node_of(id);
        self.silent.insert(node);
        self.advertise();
        self.reclaim();
        assert_eq!(self.lease(id).state, LeaseState::Reclaiming);
    }

    /// Makes a device of this lease lost, which ends the lease.
    fn loses(&mut self, id: LeaseId) {
        let node = self.node_of(id);
        self.lost.insert(node);
        self.advertise();
        self.reclaim();
        assert_eq!(self.lease(id).end_reason, Some(EndReason::DeviceLost));
    }

    /// Places the requests that the planner chooses, and makes their leases active.
    fn place(&mut self) -> Vec<LeaseId> {
        let placed = self.it.place();
        placed.iter().for_each(|lease| self.it.run(*lease));
        placed
    }

    fn runs(&mut self, wanted: RequestSpec) -> (RequestId, Vec<LeaseId>) {
        let wanted = RequestSpec { duration: Millis::from_hours(8), ..wanted };
        let request = self.it.submit(wanted);
        self.place();
        (request, self.leases_of(request))
    }

    fn leases_of(&self, request: RequestId) -> Vec<LeaseId> {
        self.it.state.requests[&request].leases().collect()
    }

    fn chains_of(&self, request: RequestId) -> Vec<Vec<LeaseId>> {
        self.it.state.requests[&request].chains(&self.it.state).collect()
    }

    /// Advances time to the end of a lease's notice.
    fn end_notice(&mut self, id: LeaseId) {
        self.it.now = self.lease(id).due().unwrap().0;
        self.it.ok(Command::Expire(Expire {}));
    }
}

fn gang(min: u32, desired: u32) -> RequestSpec {
    let members = Some(Members { min, desired });
    RequestSpec { members, spread_donors: true, ..spec(4, Share::Whole, "big") }
}

#[test]
fn a_replacement_that_is_reclaimed_is_replaced_up_to_a_bound() {
    let names = ["n1", "n2", "n3", "n4", "n5"];
    let mut failing = Failing::with(&[("north", &names)]);
    let (request, first) = failing.runs(spec(4, Share::Whole, "big"));
    let mut chain = first;
    for _ in 0..MAX_REPLACED {
        failing.it.now += 10_000;
        failing.fails(*chain.last().unwrap());
        chain.extend(failing.place());
    }
    assert_eq!((chain.len(), failing.chains_of(request)), (MAX_REPLACED + 1, vec![chain.clone()]));
    failing.fails(chain[MAX_REPLACED]);
    assert!(failing.place().is_empty(), "though one node is left");
    // Once the first lease has ended, the chain has room for another one.
    failing.end_notice(chain[0]);
    assert_eq!(failing.leases_of(request), [chain[1]]);
    chain.extend(failing.place());
    assert_eq!(failing.chains_of(request), [chain[1..].to_vec()]);
    // A lease in the middle recovers: it stays, and the leases that were to replace it end.
    let node = failing.node_of(chain[2]);
    failing.silent.remove(&node);
    failing.advertise();
    failing.reclaim();
    assert_eq!(failing.lease(chain[2]).state, LeaseState::Active);
    assert_eq!(failing.chains_of(request), [chain[1..3].to_vec()]);
    assert!(chain[3..].iter().all(|left| failing.lease(*left).end_reason == Some(EndReason::NotNeeded)));
    failing.end_notice(chain[1]);
    assert_eq!(failing.chains_of(request), [vec![chain[2]]]);
}

#[test]
fn a_chain_closes_when_a_middle_lease_is_lost() {
    let mut failing = Failing::with(&[("north", &["n1", "n2", "n3"])]);
    let (request, first) = failing.runs(spec(4, Share::Whole, "big"));
    failing.fails(first[0]);
    let second = failing.place()[0];
    failing.fails(second);
    let third = failing.place()[0];
    failing.loses(second);
    assert_eq!(failing.chains_of(request), [vec![first[0], third]]);
    assert_eq!(failing.lease(third).moved_from, Some(first[0]));
    failing.end_notice(first[0]);
    assert_eq!(failing.chains_of(request), [vec![third]]);
}

#[test]
fn each_part_of_a_gang_has_a_chain_of_its_own() {
    let mut failing = Failing::with(&[("north", &["n1"]), ("south", &["s1"])]);
    let (request, parts) = failing.runs(gang(2, 2));
    assert_eq!(parts.len(), 2);
    failing.have(&[("north", &["n1", "n2"]), ("south", &["s1", "s2"])]);
    failing.fails(parts[0]);
    let second = failing.place()[0];
    failing.fails(second);
    let third = failing.place()[0];
    assert_eq!(failing.chains_of(request), [vec![parts[0], second, third], vec![parts[1]]]);
    failing.end_notice(parts[0]);
    assert_eq!(failing.chains_of(request), [vec![second, third], vec![parts[1]]]);
    failing.loses(second);
    assert_eq!(failing.chains_of(request), [vec![third], vec![parts[1]]]);
    assert_eq!(failing.lease(parts[1]).state, LeaseState::Active, "what runs elsewhere is not concerned");
}

#[test]
fn a_gang_survives_a_lost_part_while_enough_members_are_left() {
    let mut failing = Failing::with(&[("north", &["n1", "n2"]), ("south", &["s1"])]);
    let (request, first) = failing.runs(gang(2, 3));
    let at = |failing: &Failing, id: LeaseId| failing.lease(id).placement.donor.to_string();
    let (big, small) = (first[0], failing.place()[0]);
    assert_eq!((at(&failing, big), at(&failing, small)), ("north".to_owned(), "south".to_owned()));
    failing.loses(small);
    assert_eq!(failing.leases_of(request), [big]);
    assert_eq!(failing.it.state.requests[&request].state, RequestState::Placed);
    failing.have(&[("north", &["n1", "n2"]), ("south", &["s1", "s2"])]);
    let joined = failing.place();
    assert_eq!(joined.iter().map(|id| at(&failing, *id)).collect::<Vec<_>>(), ["south"], "it is not to blame");
    // One lost device takes two of the three members, and one is too few.
    failing.loses(big);
    assert_eq!(failing.lease(joined[0]).end_reason, Some(EndReason::PartFailed));
    let waiting = &failing.it.state.requests[&request];
    assert_eq!((waiting.state, waiting.attempts), (RequestState::Queued, 0), "it was served");
}

#[test]
fn a_gang_that_moved_as_a_whole_returns_only_after_its_old_parts_end() {
    let mut failing = Failing::with(&[("north", &["n1", "n2"])]);
    let (request, first) = failing.runs(RequestSpec { spread_donors: false, ..gang(2, 4) });
    failing.have(&[("north", &["n1", "n2", "n3"])]);
    let joined = failing.place();
    let parts = failing.leases_of(request);
    assert_eq!(parts, [first[0], joined[0]]);
    failing.have(&[("north", &["n1", "n2", "n3"]), ("south", &["s1", "s2", "s3", "s4"])]);
    failing.fails(first[0]);
    let whole = failing.place()[0];
    assert_eq!((failing.lease(whole).placement.donor.clone(), failing.lease(whole).gpus.count), (cluster("south"), 16));
    // North now has room for two or for all four members, and no other donor has any.
    let many = ["n1", "n2", "n3", "n4", "n5", "n6", "n7"];
    failing.have(&[("north", &many), ("south", &["s1", "s2", "s3", "s4"])]);
    failing.fails(whole);
    assert!(failing.place().is_empty(), "there it would be one part more");
    failing.end_notice(first[0]);
    assert_eq!(failing.chains_of(request), [vec![whole]]);
    assert_eq!(failing.lease(joined[0]).end_reason, Some(EndReason::NotNeeded));
    let back = failing.place();
    assert_eq!(failing.chains_of(request), [vec![whole, back[0]]]);
    assert_eq!(failing.lease(back[0]).placement.donor, cluster("north"));
    assert!(failing.lease(back[0]).placement.nodes.keys().all(|id| *id != node("n1") || !failing.silent.contains(id)));
}
