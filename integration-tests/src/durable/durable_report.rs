//! The report of durable writes: medians over pairs.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use super::Measured;
use crate::statistics::{median, rounded};

/// One measurement of each store, right after each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) comity: Measured,
    pub(crate) etcd: Measured,
}

/// All pairs, by the number of clients.
#[derive(Debug, Default)]
pub struct DurableReport {
    pub(crate) pairs: BTreeMap<usize, Vec<Pair>>,
    /// The median of an appended 4 KiB and its fdatasync.
    pub(crate) sync_ms: f64,
}

/// The medians of one store in one row.
struct Medians {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    client_cores: f64,
    member_cores: f64,
    failed: u64,
}

impl Medians {
    fn of(measured: impl Iterator<Item = Measured> + Clone) -> Self {
        let of = |read: fn(&Measured) -> f64| median(measured.clone().map(|it| read(&it)).collect());
        Self {
            per_second: of(|it| it.per_second),
            p50_ms: of(|it| it.p50_ms),
            p99_ms: of(|it| it.p99_ms),
            client_cores: of(|it| it.client_cores),
            member_cores: of(|it| it.member_cores),
            failed: measured.map(|it| it.failed).sum(),
        }
    }

    /// Fraction of the processor time that the clients use.
    fn client_share(&self) -> f64 {
        self.client_cores / (self.client_cores + self.member_cores).max(f64::MIN_POSITIVE)
    }
}

impl DurableReport {
    fn rows(&self) -> impl Iterator<Item = (usize, Medians, Medians)> {
        self.pairs.iter().map(|(clients, pairs)| {
            let comity = Medians::of(pairs.iter().map(|pair| pair.comity));
            (*clients, comity, Medians::of(pairs.iter().map(|pair| pair.etcd)))
        })
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let row = |(clients, comity, etcd): (usize, Medians, Medians)| {
            json!({
                "clients": clients,
                "comity_per_second": rounded(comity.per_second, 1),
                "etcd_per_second": rounded(etcd.per_second, 1),
                "ratio": rounded(comity.per_second / etcd.per_second, 3),
                "comity_p50_ms": rounded(comity.p50_ms, 3),
                "etcd_p50_ms": rounded(etcd.p50_ms, 3),
                "comity_p99_ms": rounded(comity.p99_ms, 3),
                "etcd_p99_ms": rounded(etcd.p99_ms, 3),
                "comity_client_share": rounded(comity.client_share(), 3),
                "etcd_client_share": rounded(etcd.client_share(), 3),
                "comity_member_cores": rounded(comity.member_cores, 3),
                "etcd_member_cores": rounded(etcd.member_cores, 3),
                "comity_tried_again": comity.failed,
                "etcd_tried_again": etcd.failed,
            })
        };
        json!({
            "rows": self.rows().map(row).collect::<Vec<_>>(),
            "pairs": self.pairs.values().map(Vec::len).max(),
            "disk_sync_ms": rounded(self.sync_ms, 3),
        })
    }
}

impl fmt::Display for DurableReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>8}{:>12}{:>12}{:>8}{:>22}{:>22}{:>16}",
            "clients", "comity/s", "etcd/s", "ratio", "comity p50/p99, ms", "etcd p50/p99, ms", "client share, %"
        )?;
        for (clients, comity, etcd) in self.rows() {
            let times = |it: &Medians| format!("{:.2} / {:.1}", it.p50_ms, it.p99_ms);
            let shares = format!("{:.0} / {:.0}", 100.0 * comity.client_share(), 100.0 * etcd.client_share());
            writeln!(
                f,
                "{clients:>8}{:>12.0}{:>12.0}{:>8.2}{:>22}{:>22}{shares:>16}",
                comity.per_second,
                etcd.per_second,
                comity.per_second / etcd.per_second,
                times(&comity),
                times(&etcd),
            )?;
        }
        write!(f, "an appended 4 KiB and its fdatasync: {:.2} ms (median)", self.sync_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(per_second: f64) -> Measured {
        Measured { per_second, p50_ms: 1.0, p99_ms: 9.0, client_cores: 0.5, member_cores: 1.5, failed: 1 }
    }

    #[test]
    fn a_row_is_the_medians_of_its_pairs() {
        let pair = |comity, etcd| Pair { comity: measured(comity), etcd: measured(etcd) };
        let pairs = BTreeMap::from([(16, vec![pair(100.0, 50.0), pair(300.0, 400.0), pair(200.0, 80.0)])]);
        let json = DurableReport { pairs, sync_ms: 0.16 }.json();
        let row = &json["rows"][0];
        assert_eq!((row["clients"].as_u64(), json["pairs"].as_u64()), (Some(16), Some(3)));
        assert_eq!(row["comity_per_second"], 200.0);
        assert_eq!(row["etcd_per_second"], 80.0);
        assert_eq!(row["ratio"], 2.5);
        assert_eq!(row["comity_client_share"], 0.25);
        assert_eq!(row["etcd_tried_again"], 3);
    }
}
