//! Checks of MIG layouts.

use std::collections::BTreeMap;

use crate::model::inventory::{Device, MigLayout};
use crate::model::limits::WHOLE_MILLI;
use crate::model::mig::InUse;
use crate::model::refusal::Refusal;

/// Stores the map as a list of pairs: serde cannot read integer keys inside the internally tagged
/// [`Sharing`](crate::model::inventory::Sharing).
pub(crate) mod as_list {
    use std::collections::BTreeMap;

    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::model::inventory::MigInstance;

    pub(crate) fn serialize<S: Serializer>(map: &BTreeMap<u8, MigInstance>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<u8, MigInstance>, D::Error> {
        Ok(Vec::<(u8, MigInstance)>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// Checks that instances lie where the board allows, do not overlap, and agree with the device's other fields.
pub(crate) fn check(
    device: &Device,
    instances: &BTreeMap<String, u32>,
    layout: &MigLayout,
    field: &str,
) -> Result<(), Refusal> {
    let Some(board) = device.board() else {
        return Err(Refusal::invalid(
            &format!("{field}.layout"),
            format!("{} of {} MiB", device.product_name, device.memory_mib),
            "is no board whose MIG geometry is known",
            "leave the layout out: then instances are lent by their number",
        ));
    };
    let (mut all, mut local_milli) = (InUse::default(), 0);
    for (&start, instance) in &layout.instances {
        let field = format!("{field}.layout.instances[{start}]");
        let Some((_, shape)) = board.shape(&instance.profile) else {
            return Err(Refusal::invalid(
                &format!("{field}.profile"),
                &instance.profile,
                &format!("is not a MIG profile of {}", device.product_name),
                format!("use one of {}", board.names().join(", ")),
            ));
        };
        if shape.at(start).is_none() {
            let starts: Vec<String> = shape.starts.iter().map(ToString::to_string).collect();
            return Err(Refusal::invalid(
                &format!("{field}.start"),
                start,
                &format!("is no slot at which {} may begin", instance.profile),
                format!("use one of {}", starts.join(", ")),
            ));
        }
        if !all.fits(shape, start) {
            return Err(Refusal::invalid(
                &field,
                format!("{} at {start}", instance.profile),
                "lies over another instance, or is the second with the media extension",
                "list the instances that nvidia-smi mig -lgi shows",
            ));
        }
        all = all.with(shape, start);
        local_milli += if instance.local { board.milli(shape) } else { 0 };
    }
    if *instances != layout.counts() {
        return Err(Refusal::invalid(
            &format!("{field}.instances"),
            instances.values().copied().fold(0, u32::saturating_add),
            "instances are others than those of the layout",
            "count each instance of the layout, by profile",
        ));
    }
    if device.local_use_milli != local_milli && device.local_use_milli != WHOLE_MILLI {
        return Err(Refusal::invalid(
            &format!("{field}.layout"),
            device.local_use_milli,
            &format!("thousandths are in local use, {local_milli} by its instances"),
            "mark the instances that local work holds, or hold the whole device back",
        ));
    }
    if layout.repartition && !device.resource_name.ends_with("/mig") {
        return Err(Refusal::invalid(
            &format!("{field}.layout.repartition"),
            &device.resource_name,
            "counts instances of all profiles by one name",
            "use the mixed strategy, with a resource name such as nvidia.com/mig",
        ));
    }
    Ok(())
}
