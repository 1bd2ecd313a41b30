//! Decides when to write a virtual node's heartbeat or restart its virtual-kubelet. Pure.
//!
//! The virtual-kubelet stops its heartbeats while Liqo considers the donor unreachable, and Liqo notices its return
//! late. So on missing heartbeats the agent checks the donor directly; if it answers and the virtual-kubelet runs, the
//! agent writes the heartbeat. A donor whose tunnel works but whose API server is down counts as answering: its pods
//! are reachable, and Services must not leave them out.

use std::time::Duration;

use serde_json::{Value, json};

/// The virtual-kubelet renews its Lease every 10 s; an older renewal is suspect.
const STALE: Duration = Duration::from_secs(13);
/// Between heartbeats that are written for the virtual-kubelet: well below every grace period.
const INTERVAL: Duration = Duration::from_secs(5);
/// If heartbeats are missing this long while the donor answers, the virtual-kubelet hangs and is restarted.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// How much of a donor answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Its API server.
    ApiServer,
    /// The other end of the tunnel, without the API server: its pods run and can be reached.
    LineOnly,
    /// Neither.
    Nothing,
}

/// The state of one node; times are since the keeper began.
#[derive(Clone, Debug, Default)]
pub(super) struct HeartbeatState {
    /// Last renewal of the Lease that was seen.
    pub(super) renewed: Duration,
    /// Status of the condition Ready.
    pub(super) ready: String,
    /// Last heartbeat that was written for the virtual-kubelet.
    pub(super) written: Option<Duration>,
    /// Since when the donor's API server has answered without the virtual-kubelet renewing its Lease.
    pub(super) answering: Option<Duration>,
    /// Whether the virtual-kubelet was started again since it last renewed its Lease.
    pub(super) restarted: bool,
}

/// The action for a suspect node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeartbeatAction {
    Nothing,
    /// Write a heartbeat.
    Write,
    /// Start the virtual-kubelet again.
    Restart,
}

impl HeartbeatState {
    /// Records a renewal by the virtual-kubelet.
    pub(super) fn renew(&mut self, now: Duration) {
        *self = Self { renewed: now, ready: std::mem::take(&mut self.ready), ..Self::default() };
    }

    /// Whether the donor should be asked.
    pub(super) fn is_suspect(&self, now: Duration) -> bool {
        // The virtual-kubelet itself reports "False", so it is believed.
        self.ready == "Unknown" || (self.ready == "True" && now.saturating_sub(self.renewed) > STALE)
    }

    /// The action after the donor's answer.
    pub(super) fn action(&mut self, answer: Answer, now: Duration) -> HeartbeatAction {
        match answer {
            Answer::Nothing => {
                self.answering = None;
                return HeartbeatAction::Nothing;
            }
            // The virtual-kubelet cannot work without it, and does not hang.
            Answer::LineOnly => self.answering = None,
            Answer::ApiServer => {
                let since = *self.answering.get_or_insert(now);
                if now.saturating_sub(since) > HANG_TIMEOUT {
                    // The restarted virtual-kubelet must renew the Lease itself: the agent does not write heartbeats
                    // forever.
                    return if self.restarted { HeartbeatAction::Nothing } else { HeartbeatAction::Restart };
                }
            }
        }
        let due = self.written.is_none_or(|written| now.saturating_sub(written) >= INTERVAL);
        if self.ready == "Unknown" || due { HeartbeatAction::Write } else { HeartbeatAction::Nothing }
    }
}

/// A heartbeat, as a strategic merge patch of the Node's status. The reason says who wrote it if the node was in doubt.
pub(super) fn heartbeat_patch(ready: &str, now: &str) -> Value {
    let mut condition = json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": now });
    if ready != "True" {
        condition["lastTransitionTime"] = json!(now);
        condition["reason"] = json!("DonorAnswers");
        condition["message"] =
            json!("the donor, or the line to it, answers; Comity reports that until the virtual-kubelet does");
    }
    json!({ "status": { "conditions": [condition] } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn heartbeat(ready: &str) -> HeartbeatState {
        HeartbeatState { renewed: at(100), ready: ready.to_owned(), ..HeartbeatState::default() }
    }

    #[test]
    fn a_running_virtual_kubelet_is_left_alone() {
        assert!(!heartbeat("True").is_suspect(at(113)));
        assert!(heartbeat("True").is_suspect(at(114)));
        assert!(heartbeat("Unknown").is_suspect(at(100)));
        assert!(!heartbeat("False").is_suspect(at(900)) && !heartbeat("").is_suspect(at(900)));
    }

    #[test]
    fn heartbeats_are_written_before_the_node_is_not_ready_and_at_once_when_it_is() {
        let mut heartbeat = heartbeat("True");
        assert_eq!(heartbeat.action(Answer::ApiServer, at(120)), HeartbeatAction::Write);
        heartbeat.written = Some(at(120));
        assert_eq!(heartbeat.action(Answer::ApiServer, at(124)), HeartbeatAction::Nothing);
        assert_eq!(heartbeat.action(Answer::ApiServer, at(125)), HeartbeatAction::Write);
        heartbeat.written = Some(at(125));
        heartbeat.ready = "Unknown".to_owned();
        assert_eq!(heartbeat.action(Answer::ApiServer, at(126)), HeartbeatAction::Write);
    }

    #[test]
    fn a_hanging_virtual_kubelet_is_restarted_once_and_then_gets_no_heartbeats() {
        let mut heartbeat = heartbeat("True");
        assert_eq!(heartbeat.action(Answer::ApiServer, at(120)), HeartbeatAction::Write);
        assert_eq!(heartbeat.action(Answer::ApiServer, at(181)), HeartbeatAction::Restart);
        heartbeat.restarted = true;
        assert_eq!(heartbeat.action(Answer::ApiServer, at(182)), HeartbeatAction::Nothing);
        heartbeat.renew(at(190));
        assert!(!heartbeat.restarted && heartbeat.ready == "True" && !heartbeat.is_suspect(at(191)));
        // Silence begins the count again.
        assert_eq!(heartbeat.action(Answer::ApiServer, at(210)), HeartbeatAction::Write);
        assert_eq!(heartbeat.action(Answer::Nothing, at(250)), HeartbeatAction::Nothing);
        heartbeat.written = None;
        assert_eq!(heartbeat.action(Answer::ApiServer, at(300)), HeartbeatAction::Write);
    }

    #[test]
    fn pods_that_are_reached_keep_their_node_however_long_the_api_server_is_dead() {
        let mut heartbeat = heartbeat("True");
        for seconds in (120..900).step_by(5) {
            assert_eq!(heartbeat.action(Answer::LineOnly, at(seconds)), HeartbeatAction::Write);
            heartbeat.written = Some(at(seconds));
        }
        // The time until a restart begins with the API server's return.
        assert_eq!(heartbeat.action(Answer::ApiServer, at(900)), HeartbeatAction::Write);
        assert_eq!(heartbeat.action(Answer::ApiServer, at(961)), HeartbeatAction::Restart);
    }

    #[test]
    fn a_heartbeat_changes_no_other_field() {
        let quiet = &heartbeat_patch("True", "T")["status"]["conditions"][0];
        assert_eq!(*quiet, json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": "T" }));
        assert_eq!(heartbeat_patch("Unknown", "T")["status"]["conditions"][0]["lastTransitionTime"], "T");
    }
}
