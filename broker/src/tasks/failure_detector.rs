//! Marks clusters as heard or silent. Silence ends no lease: it makes leases suspect and stops new placements.

use std::collections::BTreeMap;
use std::time::Duration;

use comity_core::command::MarkClusters;
use comity_core::{Command, State};
use comity_types::ClusterId;

use crate::context::Context;
use crate::group::Consistency;

/// Check interval: a returning cluster is used within this time.
const SILENCE_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Clusters in one command.
const MAX_CLUSTERS_PER_COMMAND: usize = 1_000;

/// Runs while this broker leads. A new leader has heard no agent yet, so it marks none as silent before twice
/// `silent_after`.
pub(super) async fn run(context: &Context) {
    let began = context.clock.elapsed();
    loop {
        let heard = context.group.last_heard();
        let now = context.clock.elapsed();
        let look = |state: &State| marks(state, &heard, began, now);
        let Ok(marks) = context.group.read(Consistency::Stale, look).await else { return };
        if !marks.heard.is_empty() || !marks.silent.is_empty() {
            tracing::info!(heard = ?marks.heard, silent = ?marks.silent, "clusters");
            if let Err(error) = crate::tasks::propose(context, Command::MarkClusters(marks)).await {
                tracing::warn!(%error, "clusters are not marked yet");
            }
        }
        context.clock.sleep(SILENCE_CHECK_INTERVAL).await;
    }
}

/// Computes the marks to propose. All times are of this broker's monotonic clock.
fn marks(state: &State, heard: &BTreeMap<ClusterId, Duration>, began: Duration, now: Duration) -> MarkClusters {
    let silent_after = Duration::from_millis(state.settings().silent_after.0);
    let may_call_silent = now.saturating_sub(began) >= silent_after * 2;
    let mut marks = MarkClusters { heard: Vec::new(), silent: Vec::new() };
    for (id, cluster) in &state.clusters {
        let is_heard = heard.get(id).is_some_and(|at| now.saturating_sub(*at) < silent_after);
        if is_heard && !cluster.connected && state.check_part(id).is_ok() {
            marks.heard.push(id.clone());
        } else if !is_heard && cluster.connected && may_call_silent {
            marks.silent.push(id.clone());
        }
        if marks.heard.len() + marks.silent.len() == MAX_CLUSTERS_PER_COMMAND {
            break;
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use comity_core::cluster::Cluster;
    use comity_core::{Records, Timestamp};
    use comity_types::InstitutionId;

    use super::*;

    fn state(connected: bool) -> (State, ClusterId) {
        let id = ClusterId::parse("campus", "cluster").expect("a label");
        let cluster = Cluster {
            institution: InstitutionId::parse("polytechnic", "institution").expect("a label"),
            identity_key: String::new(),
            joined_at: Timestamp(0),
            certificate_not_after: Timestamp(0),
            void_before: 0,
            evicted: None,
            connected,
            since: Timestamp(0),
            offer: None,
            withdrawn_generation: 0,
            health: comity_core::health::Health::default(),
            last_fencing_token: 0,
            refused_donors: BTreeMap::new(),
            revision: 1,
        };
        let mut records = Records::default();
        records.clusters.insert(id.clone(), cluster);
        (State::from(records), id)
    }

    #[test]
    fn a_new_leader_calls_nobody_silent_within_its_grace() {
        let (state, id) = state(true);
        let grace = state.settings().silent_after.0 * 2;
        let look = |now| marks(&state, &BTreeMap::new(), Duration::ZERO, Duration::from_millis(now)).silent;
        assert!(look(grace - 1).is_empty());
        assert_eq!(look(grace), [id]);
    }

    #[test]
    fn heard_is_said_at_once_and_once() {
        let (state, id) = state(false);
        let at = Duration::from_millis;
        let heard = BTreeMap::from([(id.clone(), at(5))]);
        assert_eq!(marks(&state, &heard, at(0), at(6)).heard, [id]);
        let (state, _) = self::state(true);
        let marks = marks(&state, &heard, at(0), at(6));
        assert!(marks.heard.is_empty() && marks.silent.is_empty());
    }
}
