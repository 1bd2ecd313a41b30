//! Measures the gain of a federation: the same work on the same nodes, with isolated institutions, with institutions
//! that lend to each other, and as one cluster.
//!
//! ```text
//!              ┌▶ isolated: the institution's own nodes, or it waits
//! arrivals ────┼▶ federated: its own nodes first, then a request to the broker, or it waits
//! (each of an  └▶ one cluster: any node, or it waits
//! institution)
//! ```
//!
//! All three pack a site's own nodes the same way, so that they differ only in the nodes that each institution may use.
//! No task ends.

mod bar_chart;
mod federation_report;
mod site;

use std::collections::BTreeMap;
use std::str::FromStr;

use comity_core::Refusal;
use comity_core::packing::{Mix, Shape, Task};
use comity_types::{ClusterId, NodeId};

pub use self::bar_chart::svg;
pub use self::federation_report::{CaseFigures, FederationReport, Institution};
use self::site::{Allocation, Site};
use crate::arrivals::arrivals;
use crate::broker::{Broker, Member, node_id};
use crate::random::Random;
use crate::trace::Trace;

/// Distribution of the tasks among the institutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skew {
    /// In proportion to each institution's GPUs.
    Capacity,
    /// Zipf's law: the first requests twice as much as the second and three times as much as the third.
    Zipf,
}

/// The name of no skew.
#[derive(Debug, thiserror::Error)]
#[error("skew {0:?} does not exist; use capacity or zipf")]
pub struct UnknownSkew(String);

impl FromStr for Skew {
    type Err = UnknownSkew;

    fn from_str(text: &str) -> Result<Self, UnknownSkew> {
        match text {
            "capacity" => Ok(Self::Capacity),
            "zipf" => Ok(Self::Zipf),
            other => Err(UnknownSkew(other.to_owned())),
        }
    }
}

/// The parameters of a replay.
#[derive(Clone, Copy, Debug)]
pub struct FederationTest {
    /// Number of institutions, with one cluster each; they divide the trace's nodes evenly, in order of name.
    pub clusters: usize,
    /// Seed of the arrivals and of their institutions.
    pub seed: u64,
    /// Demand as a multiple of the GPU capacity.
    pub inflate: f64,
    /// Distribution of the tasks among the institutions.
    pub skew: Skew,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum FederationError {
    /// There are more institutions than nodes.
    #[error("{clusters} clusters are more than the {nodes} nodes; name at most {nodes}")]
    TooManyClusters {
        /// Requested clusters.
        clusters: usize,
        /// Nodes of the trace.
        nodes: usize,
    },
    /// The core refused a command of the simulation.
    #[error("the core refused a command of the simulation, so there are no results: {0}")]
    Refused(#[from] Refusal),
}

/// A task of one institution.
struct InstitutionTask<'t> {
    institution: usize,
    task: &'t Task,
}

impl FederationTest {
    /// Replays the same arrivals three times.
    ///
    /// # Errors
    /// When there are more clusters than nodes, or the core refuses a command.
    pub fn run(&self, trace: &Trace) -> Result<FederationReport, FederationError> {
        let shapes: Vec<&Shape> = trace.nodes.values().collect();
        if self.clusters == 0 || self.clusters > shapes.len() {
            return Err(FederationError::TooManyClusters { clusters: self.clusters, nodes: shapes.len() });
        }
        let share = |cluster: usize| cluster * shapes.len() / self.clusters;
        let owned: Vec<&[&Shape]> =
            (0..self.clusters).map(|cluster| &shapes[share(cluster)..share(cluster + 1)]).collect();
        let arrivals = self.arrivals(trace, &owned);
        let mut report = FederationReport::new(&owned, arrivals.iter().map(|one| (one.institution, one.task)));
        let mut mix = Mix::default();
        for task in &trace.tasks {
            mix.add(task.clone(), 1);
        }
        isolated(&owned, &mix, &arrivals, &mut report);
        federated(&owned, &mix, &trace.tasks, &arrivals, &mut report)?;
        one_cluster(&owned, &mix, &arrivals, &mut report);
        report.sum_up();
        Ok(report)
    }

    /// The trace's tasks in order of arrival, each assigned to a random institution.
    fn arrivals<'t>(&self, trace: &'t Trace, owned: &[&[&Shape]]) -> Vec<InstitutionTask<'t>> {
        let weight = |(number, nodes): (u64, &&[&Shape])| match self.skew {
            Skew::Capacity => nodes.iter().map(|shape| u64::from(shape.devices)).sum(),
            Skew::Zipf => 1_000_000 / number,
        };
        let sums: Vec<u64> = (1..)
            .zip(owned)
            .map(weight)
            .scan(0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        let all = usize::try_from(sums.last().copied().unwrap_or(0)).unwrap_or(usize::MAX).max(1);
        let mut random = Random::new(self.seed ^ 0xfed);
        let mut draw = || {
            let at = random.below(all) as u64;
            sums.partition_point(|&sum| sum <= at).min(owned.len() - 1)
        };
        let order = arrivals(trace, self.seed, self.inflate);
        order.into_iter().map(|index| InstitutionTask { institution: draw(), task: &trace.tasks[index] }).collect()
    }
}

fn isolated(owned: &[&[&Shape]], mix: &Mix, arrivals: &[InstitutionTask<'_>], report: &mut FederationReport) {
    let mut sites: Vec<Site> = owned.iter().map(|nodes| Site::new(nodes, mix)).collect();
    for InstitutionTask { institution, task } in arrivals {
        if sites[*institution].place(task).is_none() {
            report.institutions[*institution].isolated.waits(task);
        }
    }
    for (institution, site) in report.institutions.iter_mut().zip(&sites) {
        institution.isolated.stranded(site.free_milli(0..site.len()));
    }
}

fn one_cluster(owned: &[&[&Shape]], mix: &Mix, arrivals: &[InstitutionTask<'_>], report: &mut FederationReport) {
    let mut site = Site::new(&owned.concat(), mix);
    for InstitutionTask { institution, task } in arrivals {
        if site.place(task).is_none() {
            report.institutions[*institution].one_cluster.waits(task);
        }
    }
    let mut begin = 0;
    for (institution, nodes) in report.institutions.iter_mut().zip(owned) {
        institution.one_cluster.stranded(site.free_milli(begin..begin + nodes.len()));
        begin += nodes.len();
    }
}

fn federated(
    owned: &[&[&Shape]],
    mix: &Mix,
    history: &[Task],
    arrivals: &[InstitutionTask<'_>],
    report: &mut FederationReport,
) -> Result<(), Refusal> {
    let names = report.institutions.iter().map(|institution| institution.name.clone());
    let members: Vec<Member<'_>> =
        names.zip(owned).map(|(name, nodes)| Member { name, nodes: nodes.to_vec() }).collect();
    let mut broker = Broker::new(&members, history)?;
    let numbers: BTreeMap<ClusterId, usize> =
        (0..members.len()).map(|member| (broker.cluster(member).clone(), member)).collect();
    let most = owned.iter().map(|nodes| nodes.len()).max().unwrap_or(0);
    let ids: Result<Vec<NodeId>, Refusal> = (0..most).map(node_id).collect();
    let ids = ids?;
    let mut sites: Vec<Site> = owned.iter().map(|nodes| Site::new(nodes, mix)).collect();
    for InstitutionTask { institution, task } in arrivals {
        if let Some(allocation) = sites[*institution].place(task) {
            broker.run_locally(*institution, &ids[allocation.node], |node| {
                node.local_cpu_milli += allocation.cpu_milli;
                node.local_memory_mib += allocation.memory_mib;
                for &device in &allocation.devices {
                    node.devices[device].local_use_milli += u32::from(allocation.milli_each);
                }
            })?;
            continue;
        }
        let figures = &mut report.institutions[*institution].federated;
        // Only GPU tasks can borrow.
        if task.devices == 0 {
            figures.waits(task);
            continue;
        }
        let request = broker.submit(*institution, task)?;
        let placements = broker.plan(1).placements;
        if placements.is_empty() {
            broker.cancel(request)?;
            figures.waits(task);
            continue;
        }
        for lease in broker.place(placements)? {
            let Some(lease) = broker.state.leases.get(&lease) else { continue };
            let Some(&donor) = numbers.get(&lease.placement.donor) else { continue };
            report.lent(*institution, donor, lease.placement.milli());
            for (id, part) in &lease.placement.nodes {
                let Ok(node) = ids.binary_search(id) else { continue };
                let devices = part.devices.keys().filter_map(|&device| usize::try_from(device).ok()).collect();
                let milli_each = part.devices.values().next().map_or(0, |share| share.milli);
                sites[donor].take(&Allocation {
                    node,
                    devices,
                    milli_each: u16::try_from(milli_each).unwrap_or(u16::MAX),
                    cpu_milli: part.cpu_milli,
                    memory_mib: part.memory_mib,
                });
            }
        }
    }
    for (institution, site) in report.institutions.iter_mut().zip(&sites) {
        institution.federated.stranded(site.free_milli(0..site.len()));
    }
    Ok(())
}
