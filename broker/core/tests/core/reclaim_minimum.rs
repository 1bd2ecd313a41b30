//! Reclaims take the fewest GPUs that suffice, compared with all sets of leases.

use comity_core::command::CancelRequest;
use comity_core::demand::RequestSpec;
use comity_core::inventory::Sharing;
use comity_core::proposal::ProposedReclaim;
use comity_core::{Command, scheduler};
use comity_types::LeaseId;
use proptest::prelude::*;

use super::federation::{Federation, device, offer};
use super::reclaim::{MINUTE, urgent, used, yielding};

/// Leases on one node of eight: GPUs, minutes before now at which each began, and whether it may be preempted.
fn leases() -> impl Strategy<Value = Vec<(u32, u64, bool)>> {
    prop::collection::vec((1_u32..=3, 1_u64..=400, any::<bool>()), 1..=7)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_more_gpus_are_reclaimed_than_needed(leases in leases(), local in 0_usize..=8, wants in 1_u32..=8) {
        let mut federation = Federation::with_preemption();
        let (big, none) = (device(81_559, Sharing::Exclusive), 0);
        federation.offer("north", offer(2, &[("n1", 8, big)]));
        federation.offer("south", offer(2, &[]));
        let mut running: Vec<(LeaseId, u32, bool)> = Vec::new();
        let mut sorted = leases.clone();
        sorted.sort_by_key(|(_, minutes, _)| std::cmp::Reverse(*minutes));
        let now = federation.now + 400 * MINUTE;
        let mut taken = none;
        for (gpus, minutes, preemptible) in sorted.into_iter() {
            if taken + gpus > 8 {
                continue;
            }
            taken += gpus;
            federation.now = federation.now.max(now - minutes * MINUTE);
            let asked = yielding(gpus, 0);
            let asked = if preemptible { asked } else { RequestSpec { preemptible: None, ..asked } };
            running.push((federation.running(asked).1, gpus, preemptible));
        }
        federation.now = federation.now.max(now);
        let subsets = |may: &dyn Fn(bool) -> bool, enough: &dyn Fn(u32) -> bool| -> Option<u32> {
            let free = 8 - taken;
            (0..1_u32 << running.len())
                .map(|bits| running.iter().enumerate().filter(move |(at, _)| bits & (1 << at) != 0).map(|(_, lease)| *lease))
                .filter(|set| set.clone().all(|(_, _, preemptible)| may(preemptible)))
                .map(|set| set.map(|(_, gpus, _)| gpus).sum::<u32>())
                .filter(|back| enough(free + back))
                .min()
        };
        let back = |proposed: &[ProposedReclaim]| -> u32 {
            let gpus = |lease: LeaseId| running.iter().find(|(id, _, _)| *id == lease).map_or(0, |(_, gpus, _)| *gpus);
            proposed.iter().map(|reclaim| gpus(reclaim.lease)).sum()
        };

        // A request that preempts others.
        let request = federation.submit(urgent(wants));
        let plan = scheduler::plan(&federation.state, 10);
        let least = subsets(&|preemptible| preemptible, &|free| free >= wants);
        let fits = !plan.placements.is_empty();
        prop_assert_eq!(fits.then_some(0).or((!plan.reclaims.is_empty()).then(|| back(&plan.reclaims))), least);
        federation.reclaim(plan.reclaims);
        federation.ok(Command::CancelRequest(CancelRequest { request }));
        federation.reclaim(Vec::new());
        prop_assert!(federation.state.reclaiming().next().is_none());

        // Local work reclaims preemptible leases first, and no more GPUs than it needs.
        federation.offer("north", used(3, &[("n1", 8, local)]));
        let proposed = federation.needs("north");
        let needs = u32::try_from(local).unwrap();
        let willing: u32 = running.iter().filter(|(_, _, preemptible)| *preemptible).map(|(_, gpus, _)| gpus).sum();
        let least = if 8 - taken + willing >= needs {
            subsets(&|preemptible| preemptible, &|free| free >= needs)
        } else {
            Some(back(&proposed))
        };
        prop_assert_eq!(Some(back(&proposed)), least);
        federation.reclaim(proposed);
        prop_assert!(federation.needs("north").is_empty());
    }
}
