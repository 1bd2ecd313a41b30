//! Converts requests and their demands.

use comity_core::demand::{
    DEFAULT_TARGET_NAMESPACE, DeviceChoice, GpuDemand, Isolation, Preemptible, RequestSpec, Share,
};
use comity_core::limits::{MAX_DONOR_LIST, MAX_NOTE_BYTES, MAX_SELECTOR_BYTES};
use comity_core::request::Request;
use comity_core::{Millis, Refusal, Timestamp};
use comity_proto::v1;
use comity_types::{
    ClassName, ClusterId, Delivery, PriorityName, RequestId, RequestState, TemplateName, TenantId, find_secret,
};

use crate::api::convert::{data, delivery, required, wiring};

/// A request as a client wrote it; `RequestSpec::check` validates amounts.
pub fn spec(spec: Option<v1::RequestSpec>) -> Result<RequestSpec, Refusal> {
    let spec = required(spec, "spec", "describe the request")?;
    let gpus = required(spec.gpus, "spec.gpus", "say which GPUs and how many")?;
    let delivery = delivery::parse(spec.delivery, "spec.delivery")?;
    if spec.note.len() > MAX_NOTE_BYTES {
        return Err(Refusal::invalid(
            "spec.note",
            &spec.note,
            "is too long",
            format!("use at most {MAX_NOTE_BYTES} bytes"),
        ));
    }
    let parsed = RequestSpec {
        tenant: TenantId::parse(&spec.tenant, "spec.tenant")?,
        origin: ClusterId::parse(&spec.origin, "spec.origin")?,
        gpus: demand(gpus)?,
        topology: wiring::topology(spec.topology.unwrap_or_default())?,
        members: spec.members.map(wiring::members),
        spread_donors: spec.spread_donors,
        data: data::needs(spec.data)?,
        duration: Millis(spec.duration_ms),
        allow_donors: donors(&spec.allow_donors, "spec.allow_donors")?,
        deny_donors: donors(&spec.deny_donors, "spec.deny_donors")?,
        delivery,
        target_namespace: target_namespace(spec.target_namespace, delivery)?,
        purpose: spec.purpose,
        note: spec.note,
        priority: named(&spec.priority).map(|class| PriorityName::parse(class, "spec.priority")).transpose()?,
        not_before: time(spec.not_before_ms),
        start_by: time(spec.start_by_ms),
        preemptible: spec.preemptible.map(|it| Preemptible {
            grace: Millis(it.grace_ms),
            checkpoint: it.checkpoint,
            same_gpu_type: it.same_gpu_type,
        }),
        release_idle: Some(Millis(spec.release_idle_ms)).filter(|idle| idle.0 > 0),
        checkpoint_secret: Some(spec.checkpoint_secret).filter(|secret| !secret.is_empty()),
        template: named(&spec.template).map(|name| TemplateName::parse(name, "spec.template")).transpose()?,
        // The submission adds its caller.
        submitted_by: String::new(),
    };
    parsed.check()?;
    check_donors(&parsed)?;
    check_note(&parsed.note)?;
    Ok(parsed)
}

/// Refuses a secret in the note, which all who see the request read. Checked only here: what is taken for a secret changes
/// between releases, and all replicas have to agree on what the log says.
fn check_note(note: &str) -> Result<(), Refusal> {
    let Some((_, noun)) = find_secret(note) else { return Ok(()) };
    let problem = format!("has {noun}, and everybody who may see the request reads it");
    Err(Refusal::invalid_bytes("spec.note", &problem, "leave it out, and replace it wherever it is valid"))
}

/// Refuses contradictory donor lists. Checked only here: the log may have older requests without this check.
fn check_donors(spec: &RequestSpec) -> Result<(), Refusal> {
    if spec.allow_donors.contains(&spec.origin) {
        let (problem, remedy) = ("is the origin itself, which lends itself nothing", "name other clusters, or none");
        return Err(Refusal::invalid("spec.allow_donors", &spec.origin, problem, remedy));
    }
    match spec.allow_donors.iter().find(|donor| spec.deny_donors.contains(donor)) {
        Some(both) => {
            let remedy = "leave it out of one of the two";
            Err(Refusal::invalid("spec.deny_donors", both, "is in spec.allow_donors too", remedy))
        }
        None => Ok(()),
    }
}

/// Empty means none.
fn named(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Zero means none.
fn time(ms: u64) -> Option<Timestamp> {
    Some(Timestamp(ms)).filter(|time| time.0 > 0)
}

/// Target namespace: kubeconfigs have a default, virtual nodes need an explicit one.
fn target_namespace(named: String, delivery: Delivery) -> Result<String, Refusal> {
    match (named.is_empty(), delivery) {
        (false, _) => Ok(named),
        (true, Delivery::Namespace) => Ok(DEFAULT_TARGET_NAMESPACE.to_owned()),
        (true, Delivery::VirtualNode) => Err(Refusal::invalid(
            "spec.target_namespace",
            "",
            "is missing, and a virtual node serves the pods of one namespace",
            "name the namespace of the origin whose pods may run on it",
        )),
    }
}

fn demand(gpus: v1::GpuDemand) -> Result<GpuDemand, Refusal> {
    let devices = match (gpus.class.is_empty(), gpus.selector.is_empty()) {
        (false, true) => DeviceChoice::Class(ClassName::parse(&gpus.class, "spec.gpus.class")?),
        (true, false) if gpus.selector.len() > MAX_SELECTOR_BYTES => {
            return Err(Refusal::invalid(
                "spec.gpus.selector",
                &gpus.selector,
                "is too long",
                format!("use at most {MAX_SELECTOR_BYTES} bytes"),
            ));
        }
        (true, false) => DeviceChoice::Selector(gpus.selector),
        (true, true) => {
            return Err(Refusal::invalid(
                "spec.gpus.class",
                "",
                "is missing, and so is spec.gpus.selector",
                "name a GPU class, or give a selector",
            ));
        }
        (false, false) => {
            return Err(Refusal::invalid(
                "spec.gpus.selector",
                &gpus.selector,
                "comes together with a class",
                "give a class or a selector, not both",
            ));
        }
    };
    let share = required(
        gpus.share.and_then(|share| share.kind),
        "spec.gpus.share",
        "use whole, milli, mig_profile or memory_mib",
    )?;
    Ok(GpuDemand {
        devices,
        share: match share {
            v1::share::Kind::Whole(_) => Share::Whole,
            v1::share::Kind::Milli(milli) => Share::Milli(milli),
            v1::share::Kind::MigProfile(profile) if comity_policy::is_mig_profile(&profile) => {
                Share::MigProfile(profile)
            }
            v1::share::Kind::MigProfile(profile) => {
                return Err(Refusal::invalid(
                    "spec.gpus.share.mig_profile",
                    profile,
                    "is not a MIG profile",
                    "use a name as nvidia-smi mig -lgip shows it, such as 1g.10gb or 1g.10gb+me",
                ));
            }
            v1::share::Kind::MemoryMib(memory) => Share::MemoryMib(memory),
        },
        count: gpus.count,
        cpu_milli_per_gpu: gpus.cpu_milli_per_gpu,
        memory_mib_per_gpu: gpus.memory_mib_per_gpu,
        isolation: isolation(gpus.isolation)?,
        gpu_type: None,
    })
}

fn isolation(isolation: i32) -> Result<Isolation, Refusal> {
    match v1::Isolation::try_from(isolation) {
        Ok(v1::Isolation::Unspecified) => Ok(Isolation::None),
        Ok(v1::Isolation::Memory) => Ok(Isolation::Memory),
        Ok(v1::Isolation::Hardware) => Ok(Isolation::Hardware),
        Err(_) => {
            let remedy = "use 0 for any, 1 for memory or 2 for hardware";
            Err(Refusal::invalid("spec.gpus.isolation", isolation, "is not known", remedy))
        }
    }
}

fn donors(names: &[String], field: &str) -> Result<Vec<ClusterId>, Refusal> {
    if names.len() > MAX_DONOR_LIST {
        return Err(Refusal::invalid(
            field,
            names.len(),
            "donors are too many",
            format!("name at most {MAX_DONOR_LIST}"),
        ));
    }
    names.iter().enumerate().map(|(index, name)| Ok(ClusterId::parse(name, &format!("{field}[{index}]"))?)).collect()
}

/// Converts to the API message.
#[must_use]
pub fn spec_to_proto(spec: &RequestSpec) -> v1::RequestSpec {
    v1::RequestSpec {
        tenant: spec.tenant.to_string(),
        origin: spec.origin.to_string(),
        gpus: Some(demand_to_proto(&spec.gpus)),
        topology: Some(wiring::topology_to_proto(spec.topology)),
        members: spec.members.map(wiring::members_to_proto),
        spread_donors: spec.spread_donors,
        data: data::needs_to_proto(&spec.data),
        duration_ms: spec.duration.0,
        allow_donors: spec.allow_donors.iter().map(ToString::to_string).collect(),
        deny_donors: spec.deny_donors.iter().map(ToString::to_string).collect(),
        delivery: delivery::to_proto(spec.delivery),
        target_namespace: spec.target_namespace.clone(),
        purpose: spec.purpose.clone(),
        note: spec.note.clone(),
        priority: spec.priority.as_ref().map_or_else(String::new, ToString::to_string),
        not_before_ms: spec.not_before.map_or(0, |time| time.0),
        start_by_ms: spec.start_by.map_or(0, |time| time.0),
        preemptible: spec.preemptible.map(|it| v1::Preemptible {
            grace_ms: it.grace.0,
            checkpoint: it.checkpoint,
            same_gpu_type: it.same_gpu_type,
        }),
        release_idle_ms: spec.release_idle.map_or(0, |idle| idle.0),
        checkpoint_secret: spec.checkpoint_secret.clone().unwrap_or_default(),
        template: spec.template.as_ref().map_or_else(String::new, ToString::to_string),
    }
}

/// Converts to the API message.
#[must_use]
pub fn demand_to_proto(gpus: &GpuDemand) -> v1::GpuDemand {
    let (class, selector) = match &gpus.devices {
        DeviceChoice::Class(class) => (class.to_string(), String::new()),
        DeviceChoice::Selector(selector) => (String::new(), selector.clone()),
    };
    let kind = match &gpus.share {
        Share::Whole => v1::share::Kind::Whole(v1::share::Whole {}),
        Share::Milli(milli) => v1::share::Kind::Milli(*milli),
        Share::MigProfile(profile) => v1::share::Kind::MigProfile(profile.clone()),
        Share::MemoryMib(memory) => v1::share::Kind::MemoryMib(*memory),
    };
    v1::GpuDemand {
        class,
        selector,
        share: Some(v1::Share { kind: Some(kind) }),
        count: gpus.count,
        cpu_milli_per_gpu: gpus.cpu_milli_per_gpu,
        memory_mib_per_gpu: gpus.memory_mib_per_gpu,
        isolation: match gpus.isolation {
            Isolation::None => v1::Isolation::Unspecified,
            Isolation::Memory => v1::Isolation::Memory,
            Isolation::Hardware => v1::Isolation::Hardware,
        }
        .into(),
    }
}

/// Converts to the API message.
#[must_use]
pub fn to_proto(id: RequestId, request: &Request) -> v1::Request {
    v1::Request {
        id: id.to_string(),
        spec: Some(spec_to_proto(&request.spec)),
        state: v1::RequestState::from(request.state).into(),
        lease: request.lease.map_or_else(String::new, |lease| lease.to_string()),
        submitted_at_ms: request.submitted_at.0,
        submitted_by: request.spec.submitted_by.clone(),
        attempts: request.attempts,
        message: request.message.clone(),
        revision: request.revision,
        leases: if request.state == RequestState::Placed {
            request.leases().map(|lease| lease.to_string()).collect()
        } else {
            Vec::new()
        },
        gpu_type: request.spec.gpus.gpu_type.as_ref().map_or_else(String::new, ToString::to_string),
        reclaims: request.reclaims,
        retry_at_ms: request.retry_at.map_or(0, |time| time.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> v1::RequestSpec {
        v1::RequestSpec {
            tenant: "poly-ml".to_owned(),
            origin: "polytech-campus".to_owned(),
            gpus: Some(v1::GpuDemand {
                class: "midrange".to_owned(),
                share: Some(v1::Share { kind: Some(v1::share::Kind::Milli(500)) }),
                count: 3,
                cpu_milli_per_gpu: 4_000,
                isolation: v1::Isolation::Memory.into(),
                ..v1::GpuDemand::default()
            }),
            delivery: v1::Delivery::Namespace.into(),
            priority: "urgent".to_owned(),
            not_before_ms: 1_000,
            start_by_ms: 2_000,
            topology: Some(v1::Topology {
                nvlink: 2,
                numa: 1,
                rdma_gbits: 200,
                spread_nodes: true,
                ..v1::Topology::default()
            }),
            members: Some(v1::Members { min: 2, desired: 4 }),
            spread_donors: false,
            release_idle_ms: 1_800_000,
            data: vec![v1::DataNeed { dataset: "imagenet-1k".to_owned(), mib: 153_600 }],
            preemptible: Some(v1::Preemptible { grace_ms: 1_000, checkpoint: true, same_gpu_type: true }),
            ..v1::RequestSpec::default()
        }
    }

    #[test]
    fn a_good_spec_comes_back_as_it_was() {
        let parsed = spec(Some(good())).expect("it is good");
        let mut expected = good();
        expected.target_namespace = DEFAULT_TARGET_NAMESPACE.to_owned();
        assert_eq!(spec_to_proto(&parsed), expected);
        let topology = Some(v1::Topology { rdma_gbits: 0, ..good().topology.expect("set") });
        let spread = v1::RequestSpec { spread_donors: true, topology, preemptible: None, ..expected.clone() };
        assert_eq!(spec_to_proto(&spec(Some(spread.clone())).expect("it is good")), spread);
        let virtual_node = v1::RequestSpec {
            delivery: v1::Delivery::VirtualNode.into(),
            target_namespace: "lab".to_owned(),
            ..expected
        };
        let parsed = spec(Some(virtual_node.clone())).expect("it is good");
        assert_eq!(spec_to_proto(&parsed), virtual_node);
    }

    #[test]
    fn a_secret_in_the_note_is_refused_and_not_repeated() {
        let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
        let refused = spec(Some(v1::RequestSpec { note: format!("run with {token}"), ..good() })).expect_err("refused");
        assert_eq!(refused.field, "spec.note");
        assert!(refused.reason.contains("an access token") && !format!("{refused:?}").contains(token), "{refused:?}");
    }

    #[test]
    fn bad_specs_name_field_value_and_remedy() {
        let gpus = |change: fn(&mut v1::GpuDemand)| {
            let mut spec = good();
            change(spec.gpus.as_mut().expect("set"));
            spec
        };
        let with = |change: fn(&mut v1::RequestSpec)| {
            let mut spec = good();
            change(&mut spec);
            spec
        };
        for (bad, field, value) in [
            (with(|s| s.tenant = "Poly".into()), "spec.tenant", "Poly"),
            (with(|s| s.origin = String::new()), "spec.origin", ""),
            (with(|s| s.gpus = None), "spec.gpus", ""),
            (with(|s| s.delivery = 0), "spec.delivery", "0"),
            (with(|s| s.delivery = 99), "spec.delivery", "99"),
            (with(|s| s.delivery = v1::Delivery::VirtualNode.into()), "spec.target_namespace", ""),
            (with(|s| s.priority = "Urgent!".into()), "spec.priority", "Urgent!"),
            (with(|s| s.start_by_ms = 1_000), "spec.start_by_ms", "1000"),
            (with(|s| s.duration_ms = u64::MAX), "spec.duration_ms", "18446744073709551615"),
            (with(|s| s.release_idle_ms = 9_999), "spec.release_idle_ms", "9999"),
            (with(|s| s.release_idle_ms = u64::MAX), "spec.release_idle_ms", "18446744073709551615"),
            (with(|s| s.allow_donors = vec!["ok".into(), "-".into()]), "spec.allow_donors[1]", "-"),
            (with(|s| s.deny_donors = vec!["a".into(); 257]), "spec.deny_donors", "257"),
            (with(|s| s.allow_donors = vec![s.origin.clone()]), "spec.allow_donors", &good().origin),
            (
                with(|s| (s.allow_donors, s.deny_donors) = (vec!["a".into(), "b".into()], vec!["b".into()])),
                "spec.deny_donors",
                "b",
            ),
            (
                gpus(|g| {
                    g.share = Some(v1::Share { kind: Some(v1::share::Kind::MigProfile("bad profile!".into())) });
                }),
                "spec.gpus.share.mig_profile",
                "bad profile!",
            ),
            (with(|s| s.target_namespace = "a.b".into()), "spec.target_namespace", "a.b"),
            (with(|s| s.topology.as_mut().expect("set").nvlink = 9), "spec.topology.nvlink", "9"),
            (with(|s| s.topology.as_mut().expect("set").numa = 9), "spec.topology.numa", "9"),
            (
                with(|s| s.topology.as_mut().expect("set").rdma_gbits = u32::MAX),
                "spec.topology.rdma_gbits",
                "4294967295",
            ),
            (with(|s| s.members = Some(v1::Members { min: 0, desired: 4 })), "spec.members.min", "0"),
            (with(|s| s.members = Some(v1::Members { min: 5, desired: 4 })), "spec.members.min", "5"),
            (with(|s| s.members = Some(v1::Members { min: 1, desired: 2_000 })), "spec.members.desired", "2000"),
            (with(|s| s.spread_donors = true), "spec.spread_donors", "true"),
            (
                with(|s| s.preemptible.as_mut().expect("set").checkpoint = false),
                "spec.preemptible.same_gpu_type",
                "true",
            ),
            (gpus(|g| g.cpu_milli_per_gpu = 0), "spec.topology.numa", "aligned"),
            (gpus(|g| g.count = 0), "spec.gpus.count", "0"),
            (gpus(|g| g.count = u32::MAX), "spec.gpus.count", "4294967295"),
            (gpus(|g| g.isolation = 9), "spec.gpus.isolation", "9"),
            (gpus(|g| g.share = None), "spec.gpus.share", ""),
            (gpus(|g| g.share = Some(v1::Share { kind: None })), "spec.gpus.share", ""),
            (
                gpus(|g| g.share = Some(v1::Share { kind: Some(v1::share::Kind::Milli(49)) })),
                "spec.gpus.share.milli",
                "49",
            ),
            (gpus(|g| g.class = String::new()), "spec.gpus.class", ""),
            (gpus(|g| g.selector = "true".into()), "spec.gpus.selector", "true"),
            (gpus(|g| g.cpu_milli_per_gpu = u64::MAX), "spec.gpus.cpu_milli_per_gpu", "18446744073709551615"),
        ] {
            let refusal = spec(Some(bad)).expect_err(field);
            assert_eq!((refusal.field.as_str(), refusal.value.as_str()), (field, value), "{refusal}");
            assert!(!refusal.remedy.is_empty(), "{refusal}");
        }
        assert_eq!(spec(None).expect_err("none").field, "spec");
    }
}
