//! Obstacles that remain even if nothing at the donor were in use, apart from wiring. Waiting cannot help, so these
//! reasons come before those that suggest waiting.

use comity_types::ClusterId;

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Fit, Wanted, fit, idle_units};
use crate::feasibility::obstacle::{Cure, Obstacle, obstacle};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::{GpuDemand, Topology};

/// Alternatives tried above and below a number of shares that fills no whole nodes.
const MAX_COUNTS_TRIED: u32 = 4_096;
const NO_SUCH_DEVICES: &str = "no-such-devices";

/// The first such reason; `least` shares are needed.
pub(crate) fn never_fits(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    least: u64,
) -> Option<Obstacle> {
    fills_no_whole_nodes(snapshot, donor, wanted)
        .or_else(|| no_node_holds_a_member(snapshot, donor, wanted, least))
        .or_else(|| no_cpu_or_memory(snapshot, donor, wanted, least))
}

/// Whole nodes provide only certain numbers of shares.
fn fills_no_whole_nodes(snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>) -> Option<Obstacle> {
    let asked = wanted.topology;
    let by_terms = !asked.whole_node && wanted.under_terms(snapshot, donor).topology.whole_node;
    if !asked.whole_node && !by_terms {
        return None;
    }
    let topology = Topology { whole_node: true, ..asked.without_wiring() };
    let mut sizes = idle_units(snapshot, donor, &Wanted { topology, members: None, ..*wanted });
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let fills = |count: u32| if asked.same_node { sizes.contains(&count) } else { fill_together(&sizes, count) };
    let (count, members) = (wanted.gpus.count, wanted.members);
    let (min, desired) = members.map_or((1, 1), |members| (members.min, members.desired));
    if sizes.is_empty() || (min..=desired).any(|members| fills(members.saturating_mul(count))) {
        return None;
    }
    let all = sizes.iter().fold(0_u32, |sum, size| sum.saturating_add(*size));
    let least = count.saturating_mul(min);
    let below = (1..least).rev().take(MAX_COUNTS_TRIED as usize).find(|count| fills(*count));
    let above = (least..=all).skip(1).take(MAX_COUNTS_TRIED as usize).find(|count| fills(*count));
    let would: Vec<String> = below.into_iter().chain(above).map(|count| count.to_string()).collect();
    let would = would.join(" or ");
    let class = wanted.class;
    Some(if by_terms {
        obstacle(
            Cure::Change,
            "no-nvlink",
            format!(
                "{donor} lends GPUs that NVLink joins by whole nodes only, and {least} shares fill none of class \
                 {class}"
            ),
            format!("ask for {would}, which fill whole nodes, or only prefer NVLink"),
        )
    } else {
        obstacle(
            Cure::Change,
            NO_SUCH_DEVICES,
            format!("{least} shares fill no whole nodes of {donor} with devices of class {class}"),
            format!("ask for {would}, which do, or for nodes that are not taken whole"),
        )
    })
}

/// Whether `count` shares fill nodes of these sizes, in the way the scheduler chooses nodes: largest first.
fn fill_together(sizes: &[u32], count: u32) -> bool {
    let taken = |left: u32, size: &u32| left.checked_sub(*size).unwrap_or(left);
    sizes.iter().fold(count, taken) == 0
}

/// A member must lie on one node, and no node is large enough.
fn no_node_holds_a_member(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    least: u64,
) -> Option<Obstacle> {
    wanted.members?;
    let plain = Wanted { topology: wanted.topology.without_wiring(), ..*wanted };
    if ever(snapshot, donor, &plain, 0, 0) >= least {
        return None;
    }
    let topology = Topology { same_node: true, spread_nodes: false, ..plain.topology };
    let most = ever(snapshot, donor, &Wanted { topology, members: None, ..*wanted }, 0, 0);
    let count = wanted.gpus.count;
    if most == 0 || most >= u64::from(count) {
        return None;
    }
    Some(obstacle(
        Cure::Change,
        NO_SUCH_DEVICES,
        format!(
            "a member lies on one node, and no node of {donor} has {count} such shares of class {}; the most is {most}",
            wanted.class
        ),
        format!("ask for members of at most {most}"),
    ))
}

/// There are enough devices, but too little CPU or memory alongside them.
fn no_cpu_or_memory(snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>, least: u64) -> Option<Obstacle> {
    let plain = Wanted { topology: wanted.topology.without_wiring(), ..*wanted };
    let (cpu, memory) = (wanted.gpus.cpu_milli_per_gpu, wanted.gpus.memory_mib_per_gpu);
    let most = ever(snapshot, donor, &plain, cpu, memory);
    if most >= least || ever(snapshot, donor, &plain, 0, 0) < least {
        return None;
    }
    let lacks_cpu = ever(snapshot, donor, &plain, cpu, 0) < least;
    let lacks_memory = ever(snapshot, donor, &plain, 0, memory) < least;
    let nodes =
        snapshot.nodes(donor).filter(|(_, _, classes)| classes.iter().flatten().any(|class| class == wanted.class));
    let (most_cpu, most_memory) =
        nodes.fold((0, 0), |(cpu, memory), (_, node, _)| (node.cpu_milli.max(cpu), node.memory_mib.max(memory)));
    let (asked, has, less) = match (lacks_cpu, lacks_memory) {
        (true, false) => (format!("{} CPU", ones(cpu)), format!("{} CPU", ones(most_cpu)), "CPU"),
        (false, true) => (format!("{} memory", gib(memory)), format!("{} memory", gib(most_memory)), "memory"),
        _ => (
            format!("{} CPU and {} memory", ones(cpu), gib(memory)),
            format!("{} CPU, and {} memory", ones(most_cpu), gib(most_memory)),
            "CPU and memory",
        ),
    };
    let members = wanted.members.map_or_else(String::new, |_| format!(", in members of {}", wanted.gpus.count));
    let fewer = if most == 0 { String::new() } else { format!(", or for at most {most} shares") };
    Some(obstacle(
        Cure::Change,
        NO_SUCH_DEVICES,
        format!(
            "{donor} has room for {most} of {least} shares with {asked} each{members} even when idle; the most that \
             one of its nodes has is {has}"
        ),
        format!("ask for less {less} with each{fewer}"),
    ))
}

/// Shares that would fit on an idle donor with this much CPU and memory each; `u64::MAX` if the request fits now.
fn ever(snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>, cpu: u64, memory: u64) -> u64 {
    let gpus = GpuDemand { cpu_milli_per_gpu: cpu, memory_mib_per_gpu: memory, ..wanted.gpus.clone() };
    match fit(snapshot, donor, &Wanted { gpus: &gpus, ..*wanted }, &mut MigValues::default()) {
        Fit::Fits { .. } => u64::MAX,
        Fit::Lacks { ever, .. } => ever,
    }
}

/// Formats thousandths, as of cores or GPUs, in units.
pub(crate) fn ones(milli: u64) -> String {
    let (whole, part) = (milli / 1_000, milli % 1_000);
    if part == 0 { whole.to_string() } else { format!("{whole}.{part:03}").trim_end_matches('0').to_owned() }
}

/// Formats MiB as Kubernetes does.
fn gib(mib: u64) -> String {
    if mib.is_multiple_of(1_024) { format!("{}Gi", mib / 1_024) } else { format!("{mib}Mi") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_nodes_are_filled_by_their_sums_or_alone() {
        let filled: Vec<u32> = (1..=20).filter(|count| fill_together(&[8, 8, 4], *count)).collect();
        assert_eq!(filled, [4, 8, 12, 16, 20]);
    }

    #[test]
    fn amounts_are_told_in_units() {
        assert_eq!([ones(112_000), ones(1_500), gib(2_048), gib(1_000)], ["112", "1.5", "2Gi", "1000Mi"]);
    }
}
