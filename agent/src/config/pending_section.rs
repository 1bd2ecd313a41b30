//! Checks `sharing.reclaimForPending` of the agent's configuration.

use comity_agent_model::local_policy::ReclaimForPending;
use comity_agent_model::settings::SettingChecks;
use comity_types::is_dns_label;

/// Longest time before a pod counts: a day.
const MAX_AFTER_SECONDS: u64 = 86_400;
/// Most namespaces.
const MAX_NAMESPACES: usize = 256;

pub(super) fn check(settings: &ReclaimForPending, checks: &mut SettingChecks) {
    let after = settings.after_seconds;
    if !(1..=MAX_AFTER_SECONDS).contains(&after) {
        let reason = format!("want 1 to {MAX_AFTER_SECONDS}; to reclaim nothing for pending pods, set enabled: false");
        checks.refuse("sharing.reclaimForPending.afterSeconds", after, reason);
    }
    let field = "sharing.reclaimForPending.namespaces";
    if settings.namespaces.len() > MAX_NAMESPACES {
        let reason = format!("name at most {MAX_NAMESPACES}; leave it out for all");
        checks.refuse(field, settings.namespaces.len(), reason);
    }
    if let Some(name) = settings.namespaces.iter().find(|name| !is_dns_label(name)) {
        checks.refuse(field, name, "write names of namespaces, as in team-a");
    }
}
