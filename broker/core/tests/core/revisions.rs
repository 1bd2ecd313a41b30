//! Revising an offer node by node equals advertising it as a whole, for the state and for planners.

use std::collections::BTreeSet;

use comity_core::command::{AdvertiseOffer, PlaceRequests, ReviseOffer};
use comity_core::demand::Share;
use comity_core::inventory::{Offer, Sharing};
use comity_core::refusal::Code;
use comity_core::scheduler::Planner;
use comity_core::{Command, snapshot};

use litemap::LiteMap;

use super::federation::{Federation, cluster, device, node, offer, spec};

fn revise(revises: u64, generation: u64) -> ReviseOffer {
    ReviseOffer { cluster: cluster("north"), revises, generation, nodes: LiteMap::new(), gone: BTreeSet::new() }
}

fn held(federation: &Federation) -> Offer {
    federation.state.clusters[&cluster("north")].offer.as_deref().cloned().unwrap()
}

/// `north`'s offer in five steps: local work, another kind of device, a new node, a removed one, and one that may not
/// be used.
fn steps() -> Vec<Offer> {
    let big = device(81_559, Sharing::Exclusive);
    let small = device(24_576, Sharing::Fractional { step_milli: 100 });
    let mut busy = offer(2, &[("n1", 8, big.clone()), ("n2", 8, big.clone())]);
    busy.nodes.get_mut(&node("n1")).unwrap().devices[3].local_use_milli = 1_000;
    let other = offer(3, &[("n1", 8, big.clone()), ("n2", 8, small.clone())]);
    let more = offer(4, &[("n1", 8, big.clone()), ("n2", 8, small.clone()), ("n3", 2, big.clone())]);
    let less = offer(5, &[("n2", 8, small.clone()), ("n3", 2, big.clone())]);
    let mut drained = offer(6, &[("n2", 8, small), ("n3", 2, big)]);
    drained.nodes.get_mut(&node("n3")).unwrap().schedulable = false;
    vec![busy, other, more, less, drained]
}

/// The revision between two offers, however much of them changed.
fn between(held: &Offer, offer: &Offer) -> ReviseOffer {
    let changed = offer.nodes.iter().filter(|(id, node)| held.nodes.get(*id) != Some(*node));
    ReviseOffer {
        nodes: changed.map(|(id, node)| (id.clone(), node.clone())).collect(),
        gone: held.nodes.keys().filter(|id| !offer.nodes.contains_key(*id)).cloned().collect(),
        ..revise(held.generation, offer.generation)
    }
}

#[test]
fn a_revised_offer_equals_the_whole_offer() {
    let (mut revised, mut whole) = (Federation::ready(), Federation::ready());
    for offer in steps() {
        let revision = between(&held(&revised), &offer);
        revised.ok(Command::ReviseOffer(revision.clone()));
        let advertise = AdvertiseOffer { cluster: cluster("north"), offer: offer.clone() };
        whole.ok(Command::AdvertiseOffer(advertise.clone()));
        assert_eq!(held(&revised), offer);
        assert_eq!(snapshot::digest(&revised.state).unwrap(), snapshot::digest(&whole.state).unwrap());
        // A report that comes twice changes nothing.
        let before = revised.state.revision;
        revised.ok(Command::ReviseOffer(revision));
        assert_eq!(revised.state.revision, before);
        whole.ok(Command::AdvertiseOffer(advertise));
    }
}

#[test]
fn a_planner_that_saw_revisions_plans_as_one_that_did_not() {
    let mut federation = Federation::ready();
    let mut planner = Planner::default();
    for (step, offer) in (0..).zip(steps()) {
        for (count, share, class) in
            [(1, Share::Whole, "big"), (1, Share::Milli(500), "small"), (2, Share::Whole, "big")]
        {
            federation.submit(spec(count + step % 2, share, class));
        }
        let plan = planner.plan(&federation.state, 100);
        assert_eq!(plan, Planner::default().plan(&federation.state, 100), "step {step}");
        federation.ok(Command::PlaceRequests(PlaceRequests { placements: plan.placements }));
        let revision = between(&held(&federation), &offer);
        federation.ok(Command::ReviseOffer(revision));
    }
    let plan = planner.plan(&federation.state, 100);
    assert_eq!(plan, Planner::default().plan(&federation.state, 100));
    assert!(federation.state.leases.len() > 3, "{} leases: the steps say too little", federation.state.leases.len());
}

#[test]
fn a_revision_of_an_unknown_offer_is_refused() {
    let mut federation = Federation::ready();
    let refused = |federation: &mut Federation, revise| federation.refused(Command::ReviseOffer(revise));
    for (revises, generation) in [(2, 3), (0, 2), (1, 1)] {
        let mut change = revise(revises, generation);
        change.gone.insert(node("n1"));
        let refusal = refused(&mut federation, change);
        assert_eq!((refusal.code, refusal.field.as_str()), (Code::StaleGeneration, "offer.generation"));
    }
    let unknown = ReviseOffer { gone: BTreeSet::from([node("n9")]), ..revise(1, 2) };
    assert_eq!(refused(&mut federation, unknown).field, "offer.gone");
    let mut impossible = held(&federation);
    impossible.nodes.get_mut(&node("n1")).unwrap().devices[0].local_use_milli = 1_001;
    let impossible = ReviseOffer { nodes: impossible.nodes, ..revise(1, 2) };
    assert!(refused(&mut federation, impossible).field.ends_with("local_use_milli"));
    let nobody = ReviseOffer { cluster: cluster("west"), ..revise(0, 1) };
    assert_eq!(refused(&mut federation, nobody).code, Code::NotFound);
}

#[test]
fn a_revision_is_made_where_it_is_shorter() {
    let big = device(81_559, Sharing::Exclusive);
    let names: Vec<String> = (0..8).map(|number| format!("n{number}")).collect();
    let nodes: Vec<_> = names.iter().map(|name| (name.as_str(), 8, big.clone())).collect();
    let before = offer(7, &nodes);
    let mut after = Offer { generation: 9, ..before.clone() };
    after.nodes.remove(&node("n0"));
    after.nodes.get_mut(&node("n1")).unwrap().local_cpu_milli = 1;
    let revision = ReviseOffer::between(&cluster("north"), &before, &after);
    assert_eq!(revision, None, "two of seven nodes are more than a quarter");
    after.nodes.insert(node("n0"), before.nodes[&node("n0")].clone());
    let revision = ReviseOffer::between(&cluster("north"), &before, &after).unwrap();
    assert_eq!((revision.revises, revision.generation, revision.nodes.len(), revision.gone.len()), (7, 9, 1, 0));
    after.deliveries.pop_first();
    assert_eq!(ReviseOffer::between(&cluster("north"), &before, &after), None);
}
