//! Says which clusters are heard and which are not. Silence tears nothing down: it makes leases suspect and keeps new work
//! away.

use std::collections::BTreeMap;
use std::time::Duration;

use comity_core::command::MarkClusters;
use comity_core::{ClusterId, Command, Millis, State, Timestamp};

use crate::context::Context;
use crate::group::Consistency;

/// Between two looks: a cluster that is back is used within this time.
const EVERY: Duration = Duration::from_millis(250);
/// Clusters in one command.
const BATCH: usize = 1_000;

/// Looks for as long as this broker leads. A new leader has heard nobody yet: it calls nobody silent before twice the time
/// has passed.
pub(super) async fn run(context: &Context) {
    let began = Timestamp(context.clock.unix_ms());
    loop {
        let heard = context.group.last_heard();
        let now = Timestamp(context.clock.unix_ms());
        let look = |state: &State| marks(state, &heard, began, now);
        let Ok(marks) = context.group.read(Consistency::Stale, look).await else { return };
        if !marks.heard.is_empty() || !marks.silent.is_empty() {
            tracing::info!(heard = ?marks.heard, silent = ?marks.silent, "clusters");
            if let Err(error) = super::propose(context, Command::MarkClusters(marks)).await {
                tracing::warn!(%error, "clusters are not marked yet");
            }
        }
        context.clock.sleep(EVERY).await;
    }
}

fn marks(state: &State, heard: &BTreeMap<ClusterId, Timestamp>, began: Timestamp, now: Timestamp) -> MarkClusters {
    let silent_after = state.settings().silent_after;
    let grace = Millis(silent_after.0.saturating_mul(2));
    let may_call_silent = now.since(began) >= grace;
    let mut marks = MarkClusters { heard: Vec::new(), silent: Vec::new() };
    for (id, cluster) in &state.clusters {
        let is_heard = heard.get(id).is_some_and(|at| now.since(*at) < silent_after);
        if is_heard && !cluster.connected {
            marks.heard.push(id.clone());
        } else if !is_heard && cluster.connected && may_call_silent {
            marks.silent.push(id.clone());
        }
        if marks.heard.len() + marks.silent.len() == BATCH {
            break;
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use comity_core::InstitutionId;
    use comity_core::cluster::Cluster;

    use super::*;

    fn state(connected: bool) -> (State, ClusterId) {
        let id = ClusterId::parse("campus", "cluster").expect("a label");
        let cluster = Cluster {
            institution: InstitutionId::parse("polytechnic", "institution").expect("a label"),
            identity_key: String::new(),
            joined_at: Timestamp(0),
            certificate_not_after: Timestamp(0),
            connected,
            since: Timestamp(0),
            offer: None,
            health: comity_core::health::Health::default(),
            last_fencing_token: 0,
            revision: 1,
        };
        let mut state = State::default();
        state.clusters.insert(id.clone(), cluster);
        (state, id)
    }

    #[test]
    fn a_new_leader_calls_nobody_silent_within_its_grace() {
        let (state, id) = state(true);
        let grace = state.settings().silent_after.0 * 2;
        let look = |now| marks(&state, &BTreeMap::new(), Timestamp(0), Timestamp(now)).silent;
        assert!(look(grace - 1).is_empty());
        assert_eq!(look(grace), [id]);
    }

    #[test]
    fn heard_is_said_at_once_and_once() {
        let (state, id) = state(false);
        let heard = BTreeMap::from([(id.clone(), Timestamp(5))]);
        assert_eq!(marks(&state, &heard, Timestamp(0), Timestamp(6)).heard, [id]);
        let (state, _) = self::state(true);
        let marks = marks(&state, &heard, Timestamp(0), Timestamp(6));
        assert!(marks.heard.is_empty() && marks.silent.is_empty());
    }
}
