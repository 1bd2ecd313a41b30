//! Fuzzes what agents and callers send: as protobuf and as JSON.

use comity_core::State;
use comity_fuzz::fuzz;
use comity_policy::{Bundle, compile_selector};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_types::ClusterId;
use prost::Message as _;

use crate::api::convert::{agent, policy, request};
use crate::api::http::procedures::Procedures;
use crate::api::http::{json_message, query_string};

const SUBMIT: &str = "/comity.v1.RequestService/SubmitRequest";
const LIST: &str = "/comity.v1.LeaseService/ListLeases";

fn campus() -> ClusterId {
    ClusterId::parse("campus", "cluster").expect("a label")
}

fn offer() -> v1::Offer {
    let device = |index, sharing: Option<v1::sharing::Mode>| v1::Device {
        index,
        product_name: "NVIDIA-A100-SXM4-40GB".to_owned(),
        architecture: "ampere".to_owned(),
        memory_mib: 40_960,
        cuda_compute_capability: "8.0".to_owned(),
        driver_version: "550.107.02".to_owned(),
        sharing: Some(v1::Sharing { mode: sharing }),
        healthy: true,
        resource_name: "nvidia.com/gpu".to_owned(),
        numa_node: Some(3),
        nvlink_clique: "a".to_owned(),
        ..v1::Device::default()
    };
    let exclusive = v1::sharing::Mode::Exclusive(v1::sharing::Exclusive {});
    let mps = v1::sharing::Mode::Mps(v1::sharing::Mps { shares: 4 });
    let rdma = v1::RdmaBandwidth { network: "ib0".to_owned(), gbits: 400, ..v1::RdmaBandwidth::default() };
    let node = v1::Node {
        id: "0123456789abcdef".to_owned(),
        cpu_milli: 64_000,
        memory_mib: 512_000,
        devices: vec![device(0, Some(exclusive)), device(1, Some(mps))],
        numa: vec![v1::NumaAmounts { numa_node: 3, cpu_milli: 32_000, memory_mib: 1 }],
        rdma: vec![rdma],
        ..v1::Node::default()
    };
    v1::Offer {
        cluster: "campus".to_owned(),
        generation: 1,
        nodes: vec![node],
        deliveries: vec![v1::Delivery::Namespace.into()],
        ..v1::Offer::default()
    }
}

fn keys() -> v1::KeyBundle {
    v1::KeyBundle {
        peering: "peer-1".into(),
        epoch: 1,
        cluster: "campus".into(),
        side: v1::Side::Origin.into(),
        wireguard_public: vec![1; 32],
        hpke_public: vec![2; 1_216],
        endpoints: vec!["10.0.0.1:51871".into()],
        identity_key: "ed25519:GbIQEMn9GuX0jS2jHkGuT1t0cqEVpHsw1Wf6W2vCq0s=".into(),
        voucher: vec![4; 64],
        signature: vec![3; 64],
        network: Some(v1::ClusterNetwork {
            pod_cidrs: vec!["10.44.0.0/16".into()],
            api_server: "10.0.0.7:6443".into(),
            liqo_cluster_id: "campus".into(),
            liqo_version: "v1.2.0".into(),
            tun: true,
            liqo_network: true,
        }),
    }
}

fn envelope() -> v1::Envelope {
    v1::Envelope {
        peering: "peer-1".into(),
        epoch: 1,
        lease: "lease-1".into(),
        step: "credential".into(),
        sequence: 1,
        from: "campus".into(),
        to: "ncc-main".into(),
        encapsulated_key: vec![5; 1_120],
        ciphertext: vec![6; 40],
        expires_at_ms: 1,
    }
}

#[test]
fn messages_of_agents() {
    let failed = v1::lease_report::Failed {
        code: "quota".into(),
        message: "the quota of 東京 is used up".into(),
        highest_fencing_token: 6,
    };
    let report = v1::LeaseReport {
        lease: "lease-1".into(),
        fencing_token: 7,
        outcome: Some(v1::lease_report::Outcome::Failed(failed)),
    };
    let established = v1::peering_report::Established { rtt_us: 900 };
    let peering = v1::PeeringReport {
        peering: "peer-1".into(),
        epoch: 1,
        outcome: Some(v1::peering_report::Outcome::Established(established)),
    };
    let bodies = [
        Body::Offer(offer()),
        Body::KeyBundle(keys()),
        Body::Envelope(envelope()),
        Body::LeaseReport(report),
        Body::PeeringReport(peering),
    ];
    let encoded = |body| v1::AgentMessage { message_id: 1, body: Some(body), ..Default::default() }.encode_to_vec();
    fuzz!("agent_message", bodies.map(encoded).to_vec(), |bytes: &[u8]| {
        let Ok(v1::AgentMessage { body: Some(body), .. }) = v1::AgentMessage::decode(bytes) else { return false };
        agent::command(body, &campus()).map_err(|refusal| refusal.to_string()).is_ok()
    });
}

#[test]
fn requests_of_users() {
    let selector = "device.memoryMiB >= 40000 && device.architecture == \"Ampere\"";
    let gpus = v1::GpuDemand {
        selector: selector.to_owned(),
        share: Some(v1::Share { kind: Some(v1::share::Kind::Milli(500)) }),
        count: 3,
        cpu_milli_per_gpu: 4_000,
        memory_mib_per_gpu: 16_384,
        ..v1::GpuDemand::default()
    };
    let spec = v1::RequestSpec {
        tenant: "poly-ml".to_owned(),
        origin: "campus".to_owned(),
        gpus: Some(gpus),
        duration_ms: 3_600_000,
        delivery: v1::Delivery::Namespace.into(),
        note: "a test".to_owned(),
        purpose: "research".to_owned(),
        allow_donors: vec!["ncc-main".to_owned()],
        data: vec![v1::DataNeed { dataset: "imagenet/train".to_owned(), mib: 150_000 }],
        ..v1::RequestSpec::default()
    };
    let state = State::default();
    fuzz!("request", vec![spec.encode_to_vec()], move |bytes: &[u8]| {
        let Ok(spec) = v1::RequestSpec::decode(bytes) else { return false };
        let selector = spec.gpus.as_ref().map(|gpus| gpus.selector.clone()).unwrap_or_default();
        let _ = compile_selector(&selector).map_err(|problem| problem.to_string());
        let Ok(spec) = request::spec(Some(spec)) else { return false };
        // What is accepted can be shown.
        let _ = (request::spec_to_proto(&spec), state.revision);
        true
    });
}

#[test]
fn policy_bundles() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../policy/examples");
    let files = comity_policy::read_directory(std::path::Path::new(examples)).expect("readable");
    let files = files.into_iter().map(|file| v1::PolicyFile { path: file.path, text: file.text }).collect();
    let bundle = v1::PolicyBundle { files, commit: "ab".repeat(20) };
    fuzz!("policy_bundle", vec![bundle.encode_to_vec()], |bytes: &[u8]| {
        let Ok(bundle) = v1::PolicyBundle::decode(bytes) else { return false };
        let Ok(source) = policy::source(Some(bundle)) else { return false };
        Bundle::compile(&source).map_err(|problems| policy::problems_to_proto(&problems)).is_ok()
    });
}

#[test]
fn json_over_http() {
    let input = |path: &str| Procedures::all().find(path).expect("a procedure").input();
    let body =
        br#"{"spec":{"tenant":"t","origin":"o","gpus":{"class":"c","count":3},"durationMs":"1"},"idempotencyKey":"k"}"#;
    let (submit, list) = (input(SUBMIT), input(LIST));
    fuzz!("json", vec![body.to_vec(), b"{}".to_vec()], move |bytes: &[u8]| {
        if let Ok(query) = std::str::from_utf8(bytes) {
            let _ = query_string::to_json(&list, query).map(|json| json_message::decode(list.clone(), &json));
        }
        let _ = json_message::encode(submit.clone(), bytes);
        json_message::decode(submit.clone(), bytes).is_ok_and(|message| json_message::to_json(&message).is_ok())
    });
}
