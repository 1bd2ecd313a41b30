use super::*;

const MIB: u64 = 1 << 20;

fn arrived(peering: &str, epoch: u64, cluster: &str, mib: u64) -> ReceivedBytes {
    ReceivedBytes { tunnel: (peering.to_owned(), epoch), cluster: cluster.to_owned(), bytes: mib * MIB }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn tunnels_of_one_cluster_count_together_and_a_new_tunnel_starts_at_zero() {
    let mut meters = Meters::default();
    assert!(meters.record(seconds(0), [arrived("p-1", 1, "eos", 500), arrived("p-2", 1, "eos", 0)]).is_empty());
    let rates = meters.record(seconds(1), [arrived("p-1", 1, "eos", 560), arrived("p-2", 1, "eos", 40)]);
    assert_eq!(rates, &Measured::from([("eos".to_owned(), 838)]));
    // Another epoch has a new counter; its bytes before the first reading have no known duration.
    let rates = meters.record(seconds(2), [arrived("p-1", 2, "eos", 300), arrived("atlas", 1, "atlas", 0)]);
    assert_eq!(rates.len(), 1);
    let rates = meters.record(seconds(3), [arrived("p-1", 2, "eos", 300), arrived("atlas", 1, "atlas", 10)]);
    assert_eq!(Vec::from_iter(rates), [(&"atlas".to_owned(), &83), (&"eos".to_owned(), &838)]);
}

#[test]
fn only_large_changes_are_published_and_old_rates_forgotten() {
    let mut meters = Meters::default();
    let mut mib = 0;
    let mut second = |meters: &mut Meters, at: u64, more: u64| {
        mib += more;
        meters.record(seconds(at), [arrived("p", 1, "eos", mib)]).get("eos").copied()
    };
    assert_eq!(second(&mut meters, 0, 0), None);
    assert_eq!(second(&mut meters, 1, 100), Some(838));
    assert_eq!(second(&mut meters, 2, 120), Some(838));
    assert_eq!(meters.exact().collect::<Vec<_>>(), [("eos", 1_006)], "the metric is exact");
    assert_eq!(second(&mut meters, 3, 130), Some(1_090));
    assert_eq!(second(&mut meters, 24 * 3_600, 0), None);
    assert!(!meters.clusters.is_empty(), "it is still there");
    assert!(meters.record(seconds(24 * 3_600 + 1), []).is_empty());
    assert!(meters.clusters.is_empty() && meters.tunnels.is_empty());
}
