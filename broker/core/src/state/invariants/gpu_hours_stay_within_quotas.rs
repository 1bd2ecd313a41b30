use comity_policy::{LimitKey, show_gpu_hours};

use crate::state::State;
use crate::state::gpu_time::all_booked;
use crate::state::invariants::Invariant;

pub(crate) const GPU_HOURS_STAY_WITHIN_QUOTAS: Invariant =
    Invariant { sentence: "GPU-hours that are used or reserved stay within quotas", check };

/// Sums GPU-time from the leases and the ledger, not from the derived sums.
fn check(state: &State) -> Vec<String> {
    let Some(record) = &state.policy else { return Vec::new() };
    let booked = all_booked(state);
    let excess = booked.iter().filter_map(|(key, start_ms, time)| {
        let limit = record.bundle.gpu_time_limit(key, start_ms).map_or(0, |(limit, _)| limit);
        let most = limit.max(state.gpu_time.tolerated.get(key, start_ms));
        (time > most).then(|| {
            let LimitKey { quota, user } = key;
            let (time, most) = (show_gpu_hours(time), show_gpu_hours(most));
            format!("quota {quota} allows {most} {user} in the period from {start_ms}, and {time} count")
        })
    });
    excess.collect()
}
