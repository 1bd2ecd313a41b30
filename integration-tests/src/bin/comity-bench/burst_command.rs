//! `comity-bench burst`: from a pod on a cluster without GPUs to its running container on another cluster.

use std::time::Duration;

use super::arguments::whole::whole;
use anyhow::{Context as _, Result, ensure};
use comity_scenarios::burst::{Burst, BurstConfig, ByHand, Phases};
use serde_json::json;

#[derive(Debug, clap::Args)]
pub(crate) struct BurstArgs {
    /// Runs of each kind: by hand, cold and warm
    #[arg(long, default_value_t = 5, value_parser = whole::<u32>(1..=100))]
    runs: u32,
    /// Skips the comparison by hand, which takes half of the time: `liqoctl_peer_ms`, `slice_by_hand_ms` and
    /// `pod_by_hand_ms` are null
    #[arg(long)]
    no_liqoctl: bool,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The lower median; 0 of no values.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// Median of each phase over some runs.
fn medians(runs: &[Phases]) -> Vec<(&'static str, u64)> {
    let names: Vec<&'static str> =
        runs.first().map(|phases| phases.0.iter().map(|(name, _)| *name).collect()).unwrap_or_default();
    let of = |name: &str| runs.iter().flat_map(|run| &run.0).filter(|(n, _)| *n == name).map(|(_, ms)| *ms).collect();
    names.into_iter().map(|name| (name, median(of(name)))).collect()
}

/// Measures and prints.
///
/// # Errors
/// When a process does not start, or a burst fails.
pub(crate) async fn run(arguments: &BurstArgs) -> Result<()> {
    let config = BurstConfig { peering_idle: "5s", with_liqoctl: !arguments.no_liqoctl, ..BurstConfig::default() };
    let mut by_hand: Vec<ByHand> = Vec::new();
    for run in 1..=if arguments.no_liqoctl { 0 } else { arguments.runs } {
        let clusters = Burst::clusters(&config).await?;
        let took = clusters.by_hand().await?;
        eprintln!(
            "by hand, run {run} of {}: liqoctl peer {} ms, a ResourceSlice {} ms, a pod on it {} ms",
            arguments.runs, took.liqoctl_peer_ms, took.slice_ms, took.pod_ms
        );
        by_hand.push(took);
        clusters.stop().await?;
    }
    let burst = Burst::start(&config).await?;
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for run in 1..=arguments.runs {
        burst.federation().no_peering(Duration::from_secs(120)).await?;
        let name = format!("cold-{run}");
        cold.push(burst.run_job(&name, 1, &["see"]).await?);
        burst.complete(&name).await?;
        burst.no_lease().await?;
        let name = format!("warm-{run}");
        warm.push(burst.run_job(&name, 1, &["see"]).await?);
        burst.complete(&name).await?;
        let took = |runs: &[Phases]| runs.last().and_then(Phases::started_ms).context("a run without a start");
        eprintln!("burst, run {run} of {}: cold {} ms, warm {} ms", arguments.runs, took(&cold)?, took(&warm)?);
    }
    burst.stop().await?;
    let (cold, warm) = (medians(&cold), medians(&warm));
    let last = |phases: &[(&str, u64)]| {
        let started = phases.iter().find(|(name, _)| *name == Phases::STARTED);
        started.map(|(_, ms)| *ms).context("a run without a started container")
    };
    ensure!(cold.len() == warm.len(), "cold and warm runs differ in their phases");
    let (cold_ms, warm_ms) = (last(&cold)?, last(&warm)?);
    let of = |step: fn(&ByHand) -> u64| (!by_hand.is_empty()).then(|| median(by_hand.iter().map(step).collect()));
    let (peer, slice, pod) = (of(|it| it.liqoctl_peer_ms), of(|it| it.slice_ms), of(|it| it.pod_ms));
    if arguments.json {
        let phases: Vec<_> = cold
            .iter()
            .zip(&warm)
            .map(|((name, cold), (_, warm))| json!({"name": name, "cold_ms": cold, "warm_ms": warm}))
            .collect();
        let result = json!({
            "runs": arguments.runs, "cold_ms": cold_ms, "warm_ms": warm_ms, "phases": phases,
            "liqoctl_peer_ms": peer, "slice_by_hand_ms": slice, "pod_by_hand_ms": pod,
        });
        println!("{result}");
        return Ok(());
    }
    println!("{:<36}{:>9}{:>9}", "after the pod was created, ms", "cold", "warm");
    for ((name, cold), (_, warm)) in cold.iter().zip(&warm) {
        println!("{name:<36}{cold:>9}{warm:>9}");
    }
    for (name, ms) in [
        ("by hand: liqoctl peer", peer),
        ("by hand: a further ResourceSlice", slice),
        ("by hand: a pod on its virtual node", pod),
    ] {
        if let Some(ms) = ms {
            println!("{name:<36}{ms:>9}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_value_in_the_middle() {
        assert_eq!(median(vec![5, 1, 9]), 5);
        assert_eq!(median(vec![4, 1, 3, 2]), 2);
        assert_eq!(median(Vec::new()), 0);
    }
}
