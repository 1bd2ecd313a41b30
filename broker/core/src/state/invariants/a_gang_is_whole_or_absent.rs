use std::collections::BTreeSet;

use comity_types::{LeaseState, RequestState};

use crate::model::limits::MAX_PARTS;
use crate::model::request::Request;
use crate::state::State;
use crate::state::gang::{members_of, parts};
use crate::state::invariants::Invariant;

pub(crate) const A_GANG_IS_WHOLE_OR_ABSENT: Invariant =
    Invariant { sentence: "a placed gang holds at least its minimum and at most its desired number of members", check };

fn check(state: &State) -> Vec<String> {
    state.requests.iter().filter_map(|(id, request)| Some(format!("{id} {}", violation_of(state, request)?))).collect()
}

fn violation_of(state: &State, request: &Request) -> Option<String> {
    if request.state != RequestState::Placed {
        return (!request.parts.is_empty()).then(|| "is not placed but has parts".to_owned());
    }
    let Some(members) = request.spec.members else {
        return (!request.parts.is_empty()).then(|| "is not a gang but has parts".to_owned());
    };
    let (mut working, mut all, mut many, mut donors) = (0_u32, 0_u32, 0, BTreeSet::new());
    for (id, lease) in parts(state, request) {
        if matches!(lease.state, LeaseState::Ending | LeaseState::Ended) {
            return Some(format!("is placed although its part {id} ends"));
        }
        let here = members_of(&request.spec, lease);
        all += here;
        working += if lease.joins && lease.state.is_held() { 0 } else { here };
        many += 1;
        donors.insert(&lease.placement.donor);
    }
    if working < members.min || all > members.desired {
        let (min, desired) = (members.min, members.desired);
        return Some(format!("holds {working} to {all} members but asks for {min} to {desired}"));
    }
    if !request.spec.spread_donors && donors.len() > 1 {
        return Some(format!("may not spread but lies on {donors:?}"));
    }
    (many > MAX_PARTS).then(|| format!("has {many} parts"))
}
