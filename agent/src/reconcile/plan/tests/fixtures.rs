//! Messages and records to start from: one peering, its leases and its envelopes.

use comity_agent_model::envelope::EnvelopeKey;
use comity_agent_model::lease::placement::{DeviceShare, NodePlacement, Placement};
use comity_types::{ClusterId, RequestId};

use super::*;

/// A cluster's network, with a Liqo.
pub(super) fn network(number: u8) -> v1::ClusterNetwork {
    v1::ClusterNetwork {
        pod_cidrs: vec![format!("10.{number}.0.0/16")],
        api_server: format!("192.0.2.{number}:6443"),
        liqo_cluster_id: format!("liqo-{number}"),
        liqo_version: "v1.2.0".into(),
        tun: true,
        liqo_network: false,
    }
}

pub(super) fn bundle(cluster: &str, side: Side) -> v1::KeyBundle {
    v1::KeyBundle {
        peering: "peer-1".into(),
        epoch: 1,
        cluster: cluster.into(),
        side: v1::Side::from(side).into(),
        network: Some(network(1)),
        ..v1::KeyBundle::default()
    }
}

pub(super) fn peering_record(cluster: &str, side: Side, epoch: u32) -> PeeringRecord {
    let keys =
        PeeringRecord::new(PEERING, &bundle(cluster, side), side, SecretKey::new([1; 32]), SecretKey::new([2; 32]));
    PeeringRecord { epoch, ..keys }
}

pub(super) fn remote() -> RemoteKeys {
    RemoteKeys {
        cluster: "other".into(),
        wireguard_public: [3; 32],
        hpke_public: HpkePublicKey::from_bytes(&[4; HpkePublicKey::BYTES]).unwrap(),
        identity_key: comity_runtime::IdentityKey::generate(&comity_runtime::SeededEntropy::new(1)).public(),
        institution: None,
        endpoints: vec!["127.0.0.1:1".into()],
        network: RemoteNetwork {
            pod_cidrs: vec!["10.2.0.0/16".parse().unwrap()],
            api_server: "192.0.2.2:6443".into(),
            liqo_cluster_id: "liqo-2".into(),
            liqo_version: "v1.2.0".into(),
            tun: true,
            liqo_network: false,
        },
    }
}

/// What an agent remembers of a cluster whose keys it verified.
pub(super) fn known_peer(remote: &RemoteKeys) -> PeerRecord {
    PeerRecord {
        cluster: remote.cluster.clone(),
        identity_key: remote.identity_key,
        trust: Trust::FirstUse,
        institution: String::new(),
        since_ms: NOW,
        had_lease: false,
        refused: None,
    }
}

/// Node `n` with two GPUs. Local work uses the last ones.
pub(super) fn two_gpus(local: [u32; 2]) -> Vec<v1::Node> {
    let device = |local_use_milli| v1::Device {
        resource_name: "nvidia.com/gpu".into(),
        memory_mib: 81_559,
        local_use_milli,
        healthy: true,
        ..v1::Device::default()
    };
    vec![v1::Node { id: "n".into(), devices: local.map(device).into(), ..v1::Node::default() }]
}

/// What the donor admits of a lease of whole GPUs.
pub(super) fn admitted(lease: &Lease) -> AdmittedCapacity {
    let placement = lease.placement.as_ref().unwrap();
    let part = |node: &NodePlacement| {
        let share = |share: &DeviceShare| {
            let units = share.units.into();
            (share.device, AdmittedShare { milli: share.milli, units, ..AdmittedShare::default() })
        };
        let devices = node.devices.iter().map(share).collect();
        (node.node.clone(), AdmittedPart { devices, ..AdmittedPart::default() })
    };
    AdmittedCapacity {
        resource_name: placement.resource_name.clone(),
        resource_count: placement.resource_count,
        mig_profile: placement.mig_profile.clone(),
        nodes: placement.nodes.iter().map(part).collect(),
    }
}

pub(super) fn cluster(name: &str) -> ClusterId {
    name.parse().unwrap()
}

/// An envelope about a lease, or about the peering itself if `lease` is empty.
pub(super) fn envelope(step: &str, lease: &str) -> Envelope {
    let lease = Some(lease).filter(|lease| !lease.is_empty()).map(|lease| lease.parse().unwrap());
    let (from, to) = (cluster("other"), cluster("this"));
    let key = EnvelopeKey { peering: PEERING, epoch: 1, lease, step: step.into(), sequence: 1 };
    Envelope { key, from, to, encapsulated_key: Vec::new(), ciphertext: Vec::new() }
}

pub(super) fn lease(id: &str, token: u64, state: LeaseState) -> Lease {
    let devices = vec![DeviceShare { device: 0, milli: 1_000, units: 1, ..DeviceShare::default() }];
    let nodes = vec![NodePlacement { node: "n".into(), devices, ..NodePlacement::default() }];
    Lease {
        state: Some(state),
        placement: Some(Placement {
            nodes,
            resource_name: "nvidia.com/gpu".into(),
            resource_count: 1,
            ..Placement::new(cluster("donor"))
        }),
        fencing_token: token,
        hold_until_ms: NOW + 120_000,
        term_ms: 3_600_000,
        ..Lease::new(id.parse().unwrap(), RequestId(1), cluster("origin"), PEERING)
    }
}
