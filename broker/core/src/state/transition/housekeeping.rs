//! Accounting of use, stored replies, and removal of old records.

use comity_types::{LeaseId, LeaseState, PeeringId, PeeringState, RequestId};

use crate::model::actor::Actor;
use crate::model::idempotency::{self, StoredReply};
use crate::model::limits::{MAX_ENDED_KEPT, MAX_IDEMPOTENCY_RECORDS};
use crate::model::peering::Peering;
use crate::model::reply::{Idempotency, Reply};
use crate::model::work::WorkType;
use crate::state::timers::Due;
use crate::state::transition::Transition;
use crate::state::{Records, State};

impl Transition<'_> {
    /// Accounts everybody's use until now.
    pub(crate) fn account_all_use(&mut self) {
        let half_life = self.state.settings().usage_half_life;
        let Records { fairness, derived, log_time, .. } = self.records();
        fairness.advance_all(*log_time, &derived.holdings, half_life);
    }

    /// Remembers that a lease is being reclaimed, for the limits on reclaims.
    pub(crate) fn note_reclaim(&mut self, id: LeaseId) {
        let now = self.now;
        let Records { leases, reclaims, .. } = self.records();
        if let Some(lease) = leases.get(&id) {
            reclaims.note(lease, now);
        }
    }

    /// Deletes a stored reply.
    pub(crate) fn forget_reply(&mut self, name: &str) {
        forget_reply(self.records(), name);
    }

    /// Deletes all stored replies to a caller.
    pub(crate) fn forget_replies_to(&mut self, caller: &str) {
        let records = self.records();
        let names: Vec<String> = records.derived.replies.of(caller).map(str::to_owned).collect();
        for name in names {
            forget_reply(records, &name);
        }
    }

    /// Stores the reply to a call, so that the call can be repeated.
    pub(crate) fn remember_reply(state: &mut State, caller: &Actor, key: &Idempotency, reply: &Reply) {
        let institution = state.institution_of_caller(caller).map(str::to_owned);
        remember_reply(&mut state.records, institution, (key, reply), MAX_IDEMPOTENCY_RECORDS);
    }

    /// Keeps the newest [`MAX_ENDED_KEPT`] ended records of each kind. Ids ascend, so the lowest are the oldest.
    pub(crate) fn forget_ended(&mut self) {
        let records = self.records();
        let excess = records.leases.len().saturating_sub(records.derived.live_leases.len() + MAX_ENDED_KEPT);
        let ended = records.leases.iter().filter(|(_, lease)| lease.state == LeaseState::Ended).map(|(id, _)| *id);
        let old: Vec<LeaseId> = ended.take(excess).collect();
        for id in old {
            records.leases.remove(&id);
        }
        // Scan the requests only when there may be too many ended ones.
        if records.requests.len() > 2 * MAX_ENDED_KEPT {
            let ended = records.requests.iter().filter(|(_, request)| request.state.is_final()).map(|(id, _)| *id);
            let ended: Vec<RequestId> = ended.collect();
            for id in ended.iter().take(ended.len().saturating_sub(MAX_ENDED_KEPT)) {
                if let Some(request) = records.requests.remove(id) {
                    records.derived.work.remove(&WorkType::of(&request));
                }
            }
        }
        if records.peerings.len() > 2 * MAX_ENDED_KEPT {
            let is_closed = |peering: &Peering| peering.state == PeeringState::Closed && peering.leases.is_empty();
            let closed = records.peerings.iter().filter(|(_, peering)| is_closed(peering));
            let closed: Vec<PeeringId> = closed.map(|(id, _)| *id).collect();
            for id in closed.iter().take(closed.len().saturating_sub(MAX_ENDED_KEPT)) {
                records.peerings.remove(id);
            }
        }
    }
}

/// Stores a reply; there are at most `most` afterwards. The institution with most replies makes room, and of it the
/// caller with most, so that however many calls somebody makes, others can repeat theirs.
fn remember_reply(
    records: &mut Records,
    institution: Option<String>,
    (key, reply): (&Idempotency, &Reply),
    most: usize,
) {
    while records.idempotency.len() >= most {
        let Some(oldest) = records.derived.replies.oldest_of_most().map(str::to_owned) else { break };
        forget_reply(records, &oldest);
    }
    let name = idempotency::record_name(key);
    let (body_sha256, at) = (key.body_sha256.clone(), records.log_time);
    let record = StoredReply { institution, body_sha256, reply: reply.clone(), at };
    let due = Some(record.at.after(idempotency::KEPT_FOR));
    records.derived.timers.set(Due::Idempotency(name.clone()), due);
    records.derived.replies.add(&name, &record);
    records.idempotency.insert(name, record);
}

fn forget_reply(records: &mut Records, name: &str) {
    if let Some(record) = records.idempotency.remove(name) {
        records.derived.replies.remove(name, &record);
    }
    records.derived.timers.set(Due::Idempotency(name.to_owned()), None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::reply::ReplyBody;
    use crate::model::time::Timestamp;
    use crate::state::Derived;

    #[test]
    fn one_callers_calls_push_out_no_replies_to_others() {
        const MOST: usize = 8;
        let mut state = State::default();
        let call = |state: &mut State, caller: &str, key: &str| {
            state.records.log_time = Timestamp(state.log_time.0 + 1);
            let key = Idempotency { caller: caller.to_owned(), key: key.to_owned(), body_sha256: String::new() };
            remember_reply(&mut state.records, None, (&key, &Ok(ReplyBody::Done)), MOST);
        };
        for key in ["1", "2", "3"] {
            call(&mut state, "spiffe://test.example/user/alice", key);
        }
        for number in 0..5 * MOST {
            call(&mut state, "spiffe://test.example/user/mallory", &number.to_string());
        }
        assert_eq!(state.idempotency.len(), MOST);
        for key in ["1", "2", "3"] {
            assert!(state.idempotency.contains_key(&format!("spiffe://test.example/user/alice {key}")), "{key}");
        }
        assert!(state.idempotency.contains_key("spiffe://test.example/user/mallory 39"));
        assert_eq!(state.derived, Derived::of(&state));
    }
    #[test]
    fn one_institutions_callers_push_out_no_replies_to_others() {
        const MOST: usize = 8;
        let mut state = State::default();
        let call = |state: &mut State, institution: &str, caller: &str, key: usize| {
            state.records.log_time = Timestamp(state.log_time.0 + 1);
            let key = Idempotency { caller: caller.to_owned(), key: key.to_string(), body_sha256: String::new() };
            let institution = Some(institution.to_owned());
            remember_reply(&mut state.records, institution, (&key, &Ok(ReplyBody::Done)), MOST);
        };
        for key in 1..=3 {
            call(&mut state, "small", "alice", key);
        }
        for number in 0..5 * MOST {
            call(&mut state, "large", &format!("mallory-{number}"), 1);
        }
        assert_eq!(state.idempotency.len(), MOST);
        for key in 1..=3 {
            assert!(state.idempotency.contains_key(&format!("alice {key}")), "{key}");
        }
        assert_eq!(state.derived, Derived::of(&state));
    }
}
