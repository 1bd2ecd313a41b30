//! What came of the three.

use std::fmt::Write as _;

use comity_core::packing::{Shape, Task};
use serde::Serialize;

/// What came of one way to run, for one institution or for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Thousandths of the institution's GPUs that nobody uses in the end.
    pub stranded_milli: u64,
    /// Its tasks that found no place.
    pub waiting: u64,
    /// Thousandths of GPUs that those ask for.
    pub unplaced_milli: u64,
}

impl Figures {
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
    /// Tasks that its people have.
    pub tasks: u64,
    /// Thousandths of GPUs that those ask for.
    pub asked_milli: u64,
    /// Thousandths that it lends in the federation.
    pub lent_milli: u64,
    /// Thousandths that it borrows in the federation.
    pub borrowed_milli: u64,
    /// When each keeps to itself.
    pub isolated: Figures,
    /// When what does not fit at home is asked of the others.
    pub federated: Figures,
    /// When all nodes are one cluster, of which it has a part.
    pub one_cluster: Figures,
}

/// The same work on the same nodes, run in three ways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FederationReport {
    /// Each.
    pub institutions: Vec<Institution>,
    /// All together.
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

    /// Sums up; to be called when all three were run.
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

    /// A line for each institution, and one for all. GPUs with one decimal.
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

/// Thousandths as GPUs with one decimal.
fn gpus(milli: u64) -> String {
    format!("{}.{}", milli / 1_000, milli % 1_000 / 100)
}
