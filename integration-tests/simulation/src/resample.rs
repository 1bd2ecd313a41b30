//! Derives workloads from a trace's own tasks, as in the paper of the 2023 trace: more tasks that share devices, or
//! more without devices. A fixed seed draws them, so they are always the same.

use comity_core::packing::Task;

use crate::random::Random;

/// Seed of the random draws.
const SEED: u64 = 11;

/// Why a workload cannot be derived.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ResampleError {
    /// The trace has no such task.
    #[error("cannot draw {percent} % {of}: the trace has none; omit the flag or use another trace")]
    NoneToDraw {
        /// Requested percentage.
        percent: u8,
        /// Kind of the tasks.
        of: &'static str,
    },
    /// The trace already has more.
    #[error("shares already make up {now} % of the GPU demand; use a higher percentage, up to 100")]
    MoreAlready {
        /// Current percentage of the GPU demand.
        now: u64,
    },
}

/// Drops or repeats tasks without devices until they make up `percent` of all tasks.
///
/// # Errors
/// [`ResampleError::NoneToDraw`].
pub fn with_cpu_only(tasks: &[Task], percent: u8) -> Result<Vec<Task>, ResampleError> {
    let (cpu_only, mut all): (Vec<Task>, Vec<Task>) = tasks.iter().cloned().partition(|task| task.devices == 0);
    if cpu_only.is_empty() && percent > 0 {
        return Err(ResampleError::NoneToDraw { percent, of: "tasks without GPUs" });
    }
    let percent = usize::from(percent.min(99));
    let wanted = (all.len() * percent + (100 - percent) / 2) / (100 - percent);
    let mut random = Random::new(SEED);
    let mut pool = cpu_only;
    let mut missing = wanted;
    while missing > 0 {
        random.shuffle(&mut pool);
        let taken = missing.min(pool.len());
        all.extend_from_slice(&pool[..taken]);
        missing -= taken;
    }
    Ok(all)
}

/// Replaces tasks of whole devices by shares until these make up `percent` of the device demand.
///
/// # Errors
/// [`ResampleError`].
pub fn with_sharing(tasks: &[Task], percent: u8) -> Result<Vec<Task>, ResampleError> {
    let shares: Vec<Task> = tasks.iter().filter(|task| task.is_share()).cloned().collect();
    if shares.is_empty() {
        return Err(ResampleError::NoneToDraw { percent, of: "shares of GPUs" });
    }
    let mut tasks = tasks.to_vec();
    let mut all: u64 = tasks.iter().map(Task::device_milli).sum();
    let mut shared: u64 = shares.iter().map(Task::device_milli).sum();
    let enough = |shared: u64, all: u64| shared * 100 >= all * u64::from(percent);
    if shared * 100 > all * u64::from(percent) {
        return Err(ResampleError::MoreAlready { now: shared * 100 / all.max(1) });
    }
    let mut random = Random::new(SEED);
    let mut whole: Vec<usize> = (0..tasks.len()).filter(|&at| tasks[at].devices > 0 && !tasks[at].is_share()).collect();
    random.shuffle(&mut whole);
    while !enough(shared, all) {
        let Some(at) = whole.pop() else { break };
        let share = shares[random.below(shares.len())].clone();
        all = all - tasks[at].device_milli() + share.device_milli();
        shared += share.device_milli();
        tasks[at] = share;
    }
    Ok(tasks)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn task(cpu_milli: u64, devices: u16, milli: u16) -> Task {
        Task { cpu_milli, memory_mib: 1, devices, milli, kinds: Vec::new() }
    }

    /// 60 whole devices, 40 halves, 10 of CPU alone.
    fn tasks() -> Vec<Task> {
        let of = |count: usize, of: Task| std::iter::repeat_n(of, count);
        of(60, task(1, 1, 1_000)).chain(of(40, task(2, 1, 500))).chain((0..10).map(|cpu| task(cpu, 0, 0))).collect()
    }

    #[test]
    fn tasks_without_devices_reach_the_percentage() {
        let tasks = tasks();
        for (percent, wanted) in [(0, 0), (5, 5), (50, 100), (90, 900)] {
            let drawn = with_cpu_only(&tasks, percent).unwrap();
            assert_eq!(drawn.iter().filter(|task| task.devices == 0).count(), wanted, "{percent}");
            assert_eq!(drawn.len(), 100 + wanted, "those with devices stay");
            assert_eq!(drawn, with_cpu_only(&tasks, percent).unwrap(), "always the same");
        }
        // Each task occurs once before any occurs twice.
        let once = with_cpu_only(&tasks, 9).unwrap();
        assert!((0..10).all(|cpu| once.iter().any(|task| task.devices == 0 && task.cpu_milli == cpu)));
        assert_eq!(with_cpu_only(&tasks[..100], 0).unwrap().len(), 100);
        let none = with_cpu_only(&tasks[..100], 5).unwrap_err();
        assert_eq!(
            none.to_string(),
            "cannot draw 5 % tasks without GPUs: the trace has none; omit the flag or use another trace"
        );
    }

    #[test]
    fn shares_reach_the_percentage() {
        let tasks = tasks();
        for percent in [25, 40, 100] {
            let drawn = with_sharing(&tasks, percent).unwrap();
            assert_eq!(drawn.len(), tasks.len());
            let asked = |shares: bool| -> u64 {
                drawn.iter().filter(|task| task.is_share() == shares).map(Task::device_milli).sum()
            };
            let (shared, all) = (asked(true), asked(true) + asked(false));
            assert!(shared * 100 >= all * u64::from(percent), "{percent}: {shared} of {all}");
            assert!(shared * 100 < all * u64::from(percent) + 100_000, "{percent}: {shared} of {all}");
        }
        assert_eq!(with_sharing(&tasks, 20), Err(ResampleError::MoreAlready { now: 25 }));
        assert!(with_sharing(&tasks[..60], 50).is_err());
    }
}
