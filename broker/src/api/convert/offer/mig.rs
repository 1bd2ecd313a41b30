//! Converts MIG devices.

use std::collections::BTreeMap;

use comity_core::Refusal;
use comity_core::inventory::{Device, MigInstance, MigLayout, Sharing};
use comity_proto::v1;

/// Maximum MIG instances of one device, and so profiles: no geometry has more than seven.
const MAX_INSTANCES: usize = 8;

/// Parses instance counts and the layout, if given; slots are validated later.
pub(super) fn parse(mig: v1::sharing::Mig, field: &str) -> Result<Sharing, Refusal> {
    let field = format!("{field}.sharing.mig");
    let layout = mig.layout.map(|layout| parse_layout(layout, &field)).transpose()?;
    let instances = counts(mig.instances, &format!("{field}.instances"))?;
    let instances = match &layout {
        Some(layout) if instances.is_empty() => layout.counts(),
        _ => instances,
    };
    Ok(Sharing::Mig { instances, layout })
}

fn check_count(what: &str, count: usize, field: &str) -> Result<(), Refusal> {
    if count <= MAX_INSTANCES {
        return Ok(());
    }
    Err(Refusal::invalid(field, count, &format!("{what} are too many"), format!("use at most {MAX_INSTANCES}")))
}

fn is_name(profile: &str) -> bool {
    !profile.is_empty() && profile.len() <= 32 && profile.is_ascii()
}

fn counts(given: Vec<v1::sharing::MigInstances>, field: &str) -> Result<BTreeMap<String, u32>, Refusal> {
    check_count("profiles", given.len(), field)?;
    let mut instances = BTreeMap::new();
    for instance in given {
        if !is_name(&instance.profile) || instances.contains_key(&instance.profile) {
            return Err(Refusal::invalid(
                field,
                &instance.profile,
                "is not a MIG profile, or comes twice",
                "use each name as nvidia-smi reports it, such as 1g.10gb",
            ));
        }
        instances.insert(instance.profile, instance.count);
    }
    Ok(instances)
}

fn parse_layout(given: v1::sharing::MigLayout, field: &str) -> Result<MigLayout, Refusal> {
    let field = format!("{field}.layout.instances");
    check_count("instances", given.instances.len(), &field)?;
    let mut layout = MigLayout { repartition: given.repartition, instances: BTreeMap::new() };
    for (index, instance) in given.instances.into_iter().enumerate() {
        if !is_name(&instance.profile) {
            return Err(Refusal::invalid(
                &format!("{field}[{index}].profile"),
                &instance.profile,
                "is not a MIG profile",
                "use a name as nvidia-smi reports it, such as 1g.10gb",
            ));
        }
        let start = u8::try_from(instance.start).ok().filter(|start| !layout.instances.contains_key(start));
        let Some(start) = start else {
            return Err(Refusal::invalid(
                &format!("{field}[{index}].start"),
                instance.start,
                "is no memory slot, or another instance begins there",
                "use the start that nvidia-smi mig -lgi shows",
            ));
        };
        layout.instances.insert(start, MigInstance { profile: instance.profile, local: instance.local });
    }
    Ok(layout)
}

/// Derives local use from the local instances of a layout if the agent does not report it.
pub(super) fn count_local_use(device: &mut Device) {
    let (Sharing::Mig { layout: Some(layout), .. }, 0, Some(board)) =
        (&device.sharing, device.local_use_milli, device.board())
    else {
        return;
    };
    let local = layout.instances.values().filter(|instance| instance.local);
    device.local_use_milli =
        local.filter_map(|instance| board.shape(&instance.profile)).map(|(_, shape)| board.milli(shape)).sum();
}

/// Converts to the API message.
pub(super) fn to_proto(instances: &BTreeMap<String, u32>, layout: Option<&MigLayout>) -> v1::sharing::Mig {
    let instance = |(start, instance): (&u8, &MigInstance)| v1::sharing::MigInstance {
        profile: instance.profile.clone(),
        start: u32::from(*start),
        local: instance.local,
    };
    v1::sharing::Mig {
        instances: instances
            .iter()
            .map(|(profile, count)| v1::sharing::MigInstances { profile: profile.clone(), count: *count })
            .collect(),
        layout: layout.map(|layout| v1::sharing::MigLayout {
            instances: layout.instances.iter().map(instance).collect(),
            repartition: layout.repartition,
        }),
    }
}

#[cfg(test)]
mod tests {
    use comity_types::{ClusterId, NodeId};

    use super::*;

    fn offer(layout: v1::sharing::MigLayout) -> v1::Offer {
        let mig = v1::sharing::Mig { instances: Vec::new(), layout: Some(layout) };
        let device = v1::Device {
            product_name: "NVIDIA-H100-80GB-HBM3".to_owned(),
            memory_mib: 81_559,
            sharing: Some(v1::Sharing { mode: Some(v1::sharing::Mode::Mig(mig)) }),
            healthy: true,
            resource_name: "nvidia.com/mig".to_owned(),
            ..v1::Device::default()
        };
        let node = v1::Node { id: "n1".to_owned(), devices: vec![device], ..v1::Node::default() };
        v1::Offer { cluster: "campus".to_owned(), generation: 1, nodes: vec![node], deliveries: vec![1], data: None }
    }

    fn parsed(offer: v1::Offer) -> Result<Device, Refusal> {
        let caller = ClusterId::parse("campus", "cluster").expect("a label");
        let node = NodeId::parse("n1", "node").expect("a label");
        Ok(super::super::parse(offer, &caller)?.nodes[&node].devices[0].clone())
    }

    fn layout(instances: &[(&str, u32, bool)]) -> v1::sharing::MigLayout {
        let instances = instances.iter().map(|(profile, start, local)| v1::sharing::MigInstance {
            profile: (*profile).to_owned(),
            start: *start,
            local: *local,
        });
        v1::sharing::MigLayout { instances: instances.collect(), repartition: true }
    }

    #[test]
    fn a_layout_is_counted_and_comes_back_as_it_was() {
        let given = layout(&[("1g.10gb", 0, false), ("1g.10gb", 1, true), ("3g.40gb", 4, true)]);
        let device = parsed(offer(given.clone())).expect("it is good");
        assert_eq!(device.local_use_milli, 625, "five of eight slots");
        let Sharing::Mig { instances, layout } = &device.sharing else { panic!("{device:?}") };
        let back = to_proto(instances, layout.as_ref());
        assert_eq!(back.layout, Some(given));
        let counted: Vec<_> = back.instances.iter().map(|i| (i.profile.as_str(), i.count)).collect();
        assert_eq!(counted, [("1g.10gb", 2), ("3g.40gb", 1)]);
        assert_eq!(parsed(offer(layout_of_nothing())).expect("a device that is cut later").local_use_milli, 0);
    }

    fn layout_of_nothing() -> v1::sharing::MigLayout {
        layout(&[])
    }

    #[test]
    fn what_is_wrong_with_a_layout_is_named() {
        let held_back = |milli| {
            let mut offer = offer(layout(&[("1g.10gb", 0, true)]));
            offer.nodes[0].devices[0].local_use_milli = milli;
            offer
        };
        assert!(parsed(held_back(1_000)).is_ok() && parsed(held_back(125)).is_ok());
        let with = |change: fn(&mut v1::Device)| {
            let mut offer = offer(layout(&[("1g.10gb", 0, false)]));
            change(&mut offer.nodes[0].devices[0]);
            offer
        };
        let fixed = v1::sharing::MigLayout { repartition: false, ..layout_of_nothing() };
        for (bad, field, value) in [
            (offer(layout(&[("5g.60gb", 0, false)])), "layout.instances[0].profile", "5g.60gb"),
            (offer(layout(&[("2g.20gb", 1, false)])), "layout.instances[1].start", "1"),
            (offer(layout(&[("4g.40gb", 4, false)])), "layout.instances[4].start", "4"),
            (offer(layout(&[("", 4, false)])), "layout.instances[0].profile", ""),
            (offer(layout(&[("1g.10gb", 4, false), ("1g.10gb", 4, false)])), "layout.instances[1].start", "4"),
            (offer(layout(&[("1g.10gb", 256, false)])), "layout.instances[0].start", "256"),
            (offer(layout(&[("3g.40gb", 0, false), ("2g.20gb", 2, false)])), "layout.instances[2]", "2g.20gb at 2"),
            (
                offer(layout(&[("1g.10gb+me", 0, false), ("1g.10gb+me", 2, false)])),
                "layout.instances[2]",
                "1g.10gb+me at 2",
            ),
            (offer(layout(&[("1g.10gb", 0, false); 9])), "layout.instances", "9"),
            (offer(fixed), "instances", "0"),
            (held_back(126), "layout", "126"),
            (with(|d| d.memory_mib = 46_068), "layout", "NVIDIA-H100-80GB-HBM3 of 46068 MiB"),
            (with(|d| d.resource_name = "nvidia.com/gpu".into()), "layout.repartition", "nvidia.com/gpu"),
            (
                with(|d| {
                    let Some(v1::sharing::Mode::Mig(mig)) = d.sharing.as_mut().and_then(|s| s.mode.as_mut()) else {
                        return;
                    };
                    mig.instances = vec![v1::sharing::MigInstances { profile: "1g.10gb".into(), count: 2 }];
                }),
                "instances",
                "2",
            ),
        ] {
            let refusal = parsed(bad).expect_err(field);
            assert!(refusal.field.ends_with(&format!(".{field}")), "{refusal}: {} is not {field}", refusal.field);
            assert_eq!(refusal.value, value, "{refusal}");
            assert!(!refusal.remedy.is_empty(), "{refusal}");
        }
    }
}
