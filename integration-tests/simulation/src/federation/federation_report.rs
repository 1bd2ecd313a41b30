//! The result of a federation replay, as data and as a table.

use std::fmt::Write as _;

use comity_core::packing::{Shape, Task};
use serde::Serialize;

/// The result of one of the three cases, for one institution or for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CaseFigures {
    /// Thousandths of the institution's GPUs that stay unused.
    pub stranded_milli: u64,
    /// Its tasks without a place.
    pub waiting: u64,
    /// Thousandths of GPUs that those tasks request.
    pub unplaced_milli: u64,
}

impl CaseFigures {
    pub(super) fn waits(&mut self, task: &Task) {
        self.waiting += 1;
        self.unplaced_milli += task.device_milli();
    }

    pub(super) fn stranded(&mut self, milli: u64) {
        self.stranded_milli = milli;
    }

    fn plus(self, other: Self) -> Self {
        Self {
            stranded_milli: self.stranded_milli + other.stranded_milli,
            waiting: self.waiting + other.waiting,
            unplaced_milli: self.unplaced_milli + other.unplaced_milli,
        }
    }
}

/// One institution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Institution {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: usize,
    /// Its GPUs, in thousandths.
    pub gpus_milli: u64,
    /// Tasks of its users.
    pub tasks: u64,
    /// Thousandths of GPUs that those tasks request.
    pub asked_milli: u64,
    /// Thousandths that it lends in the federation.
    pub lent_milli: u64,
    /// Thousandths that it borrows in the federation.
    pub borrowed_milli: u64,
    /// Result with isolated institutions.
    pub isolated: CaseFigures,
    /// Result with borrowing through the broker.
    pub federated: CaseFigures,
    /// Result with all nodes in one cluster.
    pub one_cluster: CaseFigures,
}

/// The same work on the same nodes in the three cases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FederationReport {
    /// One entry per institution.
    pub institutions: Vec<Institution>,
    /// The sum over all institutions.
    pub all: Institution,
}

impl FederationReport {
    pub(super) fn new<'t>(owned: &[&[&Shape]], work: impl Iterator<Item = (usize, &'t Task)>) -> Self {
        let institution = |(number, nodes): (usize, &&[&Shape])| Institution {
            name: format!("institution-{number:02}"),
            nodes: nodes.len(),
            gpus_milli: nodes.iter().map(|shape| u64::from(shape.devices) * 1_000).sum(),
            ..Institution::default()
        };
        let mut institutions: Vec<Institution> = (1..).zip(owned).map(institution).collect();
        for (at, task) in work {
            institutions[at].tasks += 1;
            institutions[at].asked_milli += task.device_milli();
        }
        Self { institutions, all: Institution::default() }
    }

    pub(super) fn lent(&mut self, borrower: usize, lender: usize, milli: u64) {
        self.institutions[borrower].borrowed_milli += milli;
        self.institutions[lender].lent_milli += milli;
    }

    /// Computes the sum over all institutions; call it after all three cases.
    pub(super) fn sum_up(&mut self) {
        self.all = Institution { name: "all".to_owned(), ..Institution::default() };
        for one in &self.institutions {
            let all = &mut self.all;
            all.nodes += one.nodes;
            all.gpus_milli += one.gpus_milli;
            all.tasks += one.tasks;
            all.asked_milli += one.asked_milli;
            all.lent_milli += one.lent_milli;
            all.borrowed_milli += one.borrowed_milli;
            all.isolated = all.isolated.plus(one.isolated);
            all.federated = all.federated.plus(one.federated);
            all.one_cluster = all.one_cluster.plus(one.one_cluster);
        }
    }

    /// One row per institution and one for their sum; GPUs with one decimal.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:36}{:^27}{:^27}{:^27}\n{:<16}{:>6}{:>7}{:>7}",
            "", "isolated", "federated", "one cluster", "", "GPUs", "asked", "lent"
        );
        for _ in 0..3 {
            let _ = write!(text, "{:>9}{:>9}{:>9}", "stranded", "waiting", "unplaced");
        }
        text.push('\n');
        for one in self.institutions.iter().chain([&self.all]) {
            let _ = write!(
                text,
                "{:<16}{:>6}{:>7}{:>7}",
                one.name,
                one.gpus_milli / 1_000,
                gpus(one.asked_milli),
                gpus(one.lent_milli)
            );
            for figures in [one.isolated, one.federated, one.one_cluster] {
                let (stranded, unplaced) = (gpus(figures.stranded_milli), gpus(figures.unplaced_milli));
                let _ = write!(text, "{stranded:>9}{:>9}{unplaced:>9}", figures.waiting);
            }
            text.push('\n');
        }
        text
    }
}

/// Formats thousandths as GPUs with one decimal.
fn gpus(milli: u64) -> String {
    format!("{}.{}", milli / 1_000, milli % 1_000 / 100)
}
