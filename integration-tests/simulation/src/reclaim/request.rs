//! Draws requests from a seed.

use comity_core::demand::Preemptible;
use comity_core::demand::{RequestSpec, Topology};
use comity_core::{Millis, Refusal};
use comity_types::{PriorityName, TenantId};

use super::terms::{ORIGINS, PRIORITIES, cluster};
use crate::broker::spec::{request_spec, whole_gpus};
use crate::random::Random;
use crate::time::{HOUR, MINUTE};

/// A random request for one to four GPUs and some hours.
pub(crate) fn request(random: &mut Random) -> Result<RequestSpec, Refusal> {
    let origin = ORIGINS[random.below(ORIGINS.len())];
    let grace = Millis(random.bits() % (20 * MINUTE));
    let preemptible = Preemptible { grace, checkpoint: random.below(2) == 0, same_gpu_type: false };
    let gpus = whole_gpus(1 + u32::try_from(random.below(4)).unwrap_or(0), 1_000, 1_000)?;
    let topology = Topology { same_node: random.below(3) > 0, ..Topology::default() };
    let duration = Millis(30 * MINUTE + random.bits() % (8 * HOUR));
    let priority = PriorityName::parse(PRIORITIES[random.below(PRIORITIES.len())].0, "priority")?;
    Ok(RequestSpec {
        topology,
        priority: Some(priority),
        preemptible: (random.below(4) > 0).then_some(preemptible),
        ..request_spec(TenantId::parse(origin, "tenant")?, cluster(origin)?, gpus, duration)
    })
}
