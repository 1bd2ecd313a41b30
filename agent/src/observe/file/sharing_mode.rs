//! Ways of sharing a device in an inventory file.

use std::collections::BTreeSet;

use comity_proto::v1;
use serde_saphyr::Spanned;

use super::inventory_format::{FileInstance, FileSharing};
use super::mistakes::Problem;
use crate::observe::WHOLE_MILLI;

pub(super) fn sharing_mode(given: &Spanned<FileSharing>) -> Result<v1::sharing::Mode, Problem> {
    let within = |name: &str, value: u32, range: std::ops::RangeInclusive<u32>| {
        if range.contains(&value) {
            return Ok(value);
        }
        Err(Problem(
            given.referenced,
            format!("sharing: {name} {value} is out of range; use {} to {}", range.start(), range.end()),
        ))
    };
    Ok(match &given.value {
        FileSharing::Exclusive => v1::sharing::Mode::Exclusive(v1::sharing::Exclusive {}),
        FileSharing::TimeSlicing { replicas } => v1::sharing::Mode::TimeSlicing(v1::sharing::TimeSlicing {
            replicas: within("replicas", *replicas, 2..=64)?,
        }),
        FileSharing::Mps { shares } => {
            v1::sharing::Mode::Mps(v1::sharing::Mps { shares: within("shares", *shares, 2..=48)? })
        }
        FileSharing::Fractional { step_milli } => v1::sharing::Mode::Fractional(v1::sharing::Fractional {
            step_milli: within("stepMilli", *step_milli, 1..=WHOLE_MILLI)?,
        }),
        FileSharing::Mig(mig) => v1::sharing::Mode::Mig(match &mig.layout {
            None if mig.repartition => {
                return Err(Problem(
                    given.referenced,
                    "sharing: repartition needs a layout; list the instances that exist, or write layout: []"
                        .to_owned(),
                ));
            }
            None => {
                within("instances in all", mig.instances.values().copied().fold(0, u32::saturating_add), 1..=8)?;
                let count = |(profile, count): (&String, &u32)| v1::sharing::MigInstances {
                    profile: profile.clone(),
                    count: *count,
                };
                v1::sharing::Mig { instances: mig.instances.iter().map(count).collect(), layout: None }
            }
            Some(_) if !mig.instances.is_empty() => {
                return Err(Problem(
                    given.referenced,
                    "sharing: instances and layout say the same; keep one of them".to_owned(),
                ));
            }
            Some(layout) => {
                within(
                    "instances in all",
                    u32::try_from(layout.len()).unwrap_or(u32::MAX),
                    u32::from(!mig.repartition)..=8,
                )?;
                let mut starts = BTreeSet::new();
                for instance in layout {
                    within(&format!("start of {}", instance.profile), instance.start, 0..=7)?;
                    if !starts.insert(instance.start) {
                        let reason =
                            format!("sharing: two instances start at {}; each has slots of its own", instance.start);
                        return Err(Problem(given.referenced, reason));
                    }
                }
                let instance = |instance: &FileInstance| v1::sharing::MigInstance {
                    profile: instance.profile.clone(),
                    start: instance.start,
                    local: instance.local,
                };
                let layout = v1::sharing::MigLayout {
                    instances: layout.iter().map(instance).collect(),
                    repartition: mig.repartition,
                };
                v1::sharing::Mig { instances: Vec::new(), layout: Some(layout) }
            }
        }),
    })
}
