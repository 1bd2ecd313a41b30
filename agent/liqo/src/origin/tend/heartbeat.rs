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
const HANGS: Duration = Duration::from_secs(60);

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
pub(super) struct Pulse {
    /// Last renewal of the Lease that was seen.
    pub(super) renewed: Duration,
    /// Status of the condition Ready.
    pub(super) ready: String,
    /// Last heartbeat that was written for the virtual-kubelet.
    pub(super) mended: Option<Duration>,
    /// Since when the donor's API server has answered without the virtual-kubelet renewing its Lease.
    pub(super) answering: Option<Duration>,
    /// Whether the virtual-kubelet was started again since it last renewed its Lease.
    pub(super) restarted: bool,
}

/// The action for a suspect node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Help {
    Nothing,
    /// Write a heartbeat.
    Beat,
    /// Start the virtual-kubelet again.
    Restart,
}

impl Pulse {
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
    pub(super) fn hear(&mut self, answer: Answer, now: Duration) -> Help {
        match answer {
            Answer::Nothing => {
                self.answering = None;
                return Help::Nothing;
            }
            // The virtual-kubelet cannot work without it, and does not hang.
            Answer::LineOnly => self.answering = None,
            Answer::ApiServer => {
                let since = *self.answering.get_or_insert(now);
                if now.saturating_sub(since) > HANGS {
                    // The restarted virtual-kubelet must renew the Lease itself: the agent does not write heartbeats
                    // forever.
                    return if self.restarted { Help::Nothing } else { Help::Restart };
                }
            }
        }
        let due = self.mended.is_none_or(|mended| now.saturating_sub(mended) >= INTERVAL);
        if self.ready == "Unknown" || due { Help::Beat } else { Help::Nothing }
    }
}

/// A heartbeat, as a strategic merge patch of the Node's status. The reason says who wrote it if the node was in doubt.
pub(super) fn beat(ready: &str, now: &str) -> Value {
    let mut condition = json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": now });
    if ready != "True" {
        condition["lastTransitionTime"] = json!(now);
        condition["reason"] = json!("DonorAnswers");
        condition["message"] =
            json!("the donor, or the line to it, answers; Comity says so until the virtual-kubelet does");
    }
    json!({ "status": { "conditions": [condition] } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn pulse(ready: &str) -> Pulse {
        Pulse { renewed: at(100), ready: ready.to_owned(), ..Pulse::default() }
    }

    #[test]
    fn a_living_virtual_kubelet_is_left_alone() {
        assert!(!pulse("True").is_suspect(at(113)));
        assert!(pulse("True").is_suspect(at(114)));
        assert!(pulse("Unknown").is_suspect(at(100)));
        assert!(!pulse("False").is_suspect(at(900)) && !pulse("").is_suspect(at(900)));
    }

    #[test]
    fn heartbeats_come_before_the_node_is_doubted_and_at_once_when_it_is() {
        let mut pulse = pulse("True");
        assert_eq!(pulse.hear(Answer::ApiServer, at(120)), Help::Beat);
        pulse.mended = Some(at(120));
        assert_eq!(pulse.hear(Answer::ApiServer, at(124)), Help::Nothing);
        assert_eq!(pulse.hear(Answer::ApiServer, at(125)), Help::Beat);
        pulse.mended = Some(at(125));
        pulse.ready = "Unknown".to_owned();
        assert_eq!(pulse.hear(Answer::ApiServer, at(126)), Help::Beat);
    }

    #[test]
    fn one_that_hangs_is_started_anew_once_and_nothing_is_pretended_for_ever() {
        let mut pulse = pulse("True");
        assert_eq!(pulse.hear(Answer::ApiServer, at(120)), Help::Beat);
        assert_eq!(pulse.hear(Answer::ApiServer, at(181)), Help::Restart);
        pulse.restarted = true;
        assert_eq!(pulse.hear(Answer::ApiServer, at(182)), Help::Nothing);
        pulse.renew(at(190));
        assert!(!pulse.restarted && pulse.ready == "True" && !pulse.is_suspect(at(191)));
        // Silence begins the count again.
        assert_eq!(pulse.hear(Answer::ApiServer, at(210)), Help::Beat);
        assert_eq!(pulse.hear(Answer::Nothing, at(250)), Help::Nothing);
        pulse.mended = None;
        assert_eq!(pulse.hear(Answer::ApiServer, at(300)), Help::Beat);
    }

    #[test]
    fn pods_that_are_reached_keep_their_node_however_long_the_api_server_is_dead() {
        let mut pulse = pulse("True");
        for seconds in (120..900).step_by(5) {
            assert_eq!(pulse.hear(Answer::LineOnly, at(seconds)), Help::Beat);
            pulse.mended = Some(at(seconds));
        }
        // The time until a restart begins with the API server's return.
        assert_eq!(pulse.hear(Answer::ApiServer, at(900)), Help::Beat);
        assert_eq!(pulse.hear(Answer::ApiServer, at(961)), Help::Restart);
    }

    #[test]
    fn a_beat_changes_no_more_than_it_must() {
        let quiet = &beat("True", "T")["status"]["conditions"][0];
        assert_eq!(*quiet, json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": "T" }));
        assert_eq!(beat("Unknown", "T")["status"]["conditions"][0]["lastTransitionTime"], "T");
    }
}
