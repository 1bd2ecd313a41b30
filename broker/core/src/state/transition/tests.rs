use comity_types::{ClusterId, LeaseId, PeeringId, PeeringState, RequestId};

use crate::model::actor::Actor;
use crate::model::broker_record::{BrokerRecord, BrokerRole};
use crate::model::refusal::Refusal;
use crate::model::reply::ReplyBody;
use crate::model::time::Timestamp;
use crate::state::State;
use crate::state::transition::Transition;

const LEADER: Actor = Actor::Leader(1);

fn proposed_peering(transition: &mut Transition<'_>) -> PeeringId {
    let [origin, donor] = ["west", "north"].map(|name| ClusterId::parse(name, "cluster").unwrap());
    transition.peering_for(&origin, &donor)
}

#[test]
fn an_illegal_move_is_an_error_in_every_build() {
    let mut state = State::default();
    let mut transition = Transition::begin(&mut state, (&LEADER, 0), "");
    let id = proposed_peering(&mut transition);
    transition.change_peering(id, |peering| peering.state = PeeringState::Closed);
    let error = transition.finish("begin-term", &Ok(ReplyBody::Done)).err().unwrap();
    assert_eq!(error.to_string(), "revision 1 would break the state: peer-1 went from Proposed to Closed");
}

#[test]
fn a_refusal_after_a_change_is_an_error() {
    let refused = || Err(Refusal::not_found("lease", 7, "lease"));
    let mut state = State::default();
    let mut transition = Transition::begin(&mut state, (&LEADER, 0), "");
    proposed_peering(&mut transition);
    let error = transition.finish("begin-term", &refused()).err().unwrap();
    assert!(error.to_string().contains("refused"), "{error}");

    // The same for a change that watchers are not told.
    let mut transition = Transition::begin(&mut state, (&LEADER, 0), "");
    let record = BrokerRecord {
        role: BrokerRole::Voter,
        raft_address: "a:1".into(),
        client_address: "a:2".into(),
        since: Timestamp(0),
    };
    transition.set_broker(1, record);
    assert!(transition.finish("begin-term", &refused()).is_err());

    let transition = Transition::begin(&mut state, (&LEADER, 0), "");
    assert!(transition.finish("begin-term", &refused()).is_ok(), "a refusal alone is no error");

    let mut transition = Transition::begin(&mut state, (&LEADER, 0), "");
    transition.change_lease(LeaseId(7), |_| {});
    transition.change_request(RequestId(7), |_| {});
    transition.change_peering(PeeringId(7), |_| {});
    transition.remove_invite("none");
    assert!(transition.finish("begin-term", &refused()).is_ok(), "neither is a look for records that do not exist");
}
