//! A fake agent: speaks the protocol and sets nothing up. The agent's crate and `integration-tests` test real ones.

use std::collections::BTreeSet;
use std::time::Duration;

use comity_core::limits::{HPKE_ENCAPSULATED_BYTES, HPKE_PUBLIC_BYTES};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::agent_service_client::AgentServiceClient;
use comity_proto::v1::broker_message::Body as Reply;
use comity_proto::v1::{lease_report, peering_report};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::federation::{Federation, Member};

/// One connected agent.
pub(crate) struct FakeAgent {
    cluster: String,
    identity_key: String,
    reports: mpsc::Sender<v1::AgentMessage>,
    replies: Streaming<v1::BrokerMessage>,
    pub(crate) welcome: v1::Welcome,
    next_id: u64,
    said: BTreeSet<String>,
}

impl FakeAgent {
    pub(crate) async fn connect(federation: &Federation, member: &Member) -> Result<Self, Status> {
        Self::connect_as(federation, member, "").await
    }

    /// Connects as a process of the member's agent.
    pub(crate) async fn connect_as(federation: &Federation, member: &Member, instance: &str) -> Result<Self, Status> {
        let (reports, receiver) = mpsc::channel(64);
        let hello = v1::Hello { instance: instance.to_owned(), ..v1::Hello::default() };
        reports.send(message(0, Body::Hello(hello))).await.unwrap();
        let mut client = AgentServiceClient::new(federation.channel(&member.pem));
        let mut replies = client.connect(ReceiverStream::new(receiver)).await?.into_inner();
        let first = replies.message().await?.and_then(|reply| reply.body);
        let Some(Reply::Welcome(welcome)) = first else { panic!("no welcome: {first:?}") };
        let beat = reports.downgrade();
        tokio::spawn(async move {
            while let Some(reports) = beat.upgrade() {
                if reports.send(message(0, Body::Heartbeat(v1::Heartbeat {}))).await.is_err() {
                    break;
                }
                drop(reports);
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        Ok(Self {
            cluster: member.name.clone(),
            identity_key: member.identity.public().to_string(),
            reports,
            replies,
            welcome,
            next_id: 1,
            said: BTreeSet::new(),
        })
    }

    /// Says more while it obeys.
    pub(crate) fn voice(&self) -> mpsc::Sender<v1::AgentMessage> {
        self.reports.clone()
    }

    /// The next message of the broker.
    pub(crate) async fn next(&mut self) -> Result<Reply, Status> {
        match self.replies.message().await? {
            Some(reply) => Ok(reply.body.unwrap()),
            None => Err(Status::cancelled("the stream ended without a word")),
        }
    }

    /// Says something and waits for its ack; desired states on the way are passed over.
    pub(crate) async fn report(&mut self, body: Body) -> Result<Option<v1::ErrorDetail>, Status> {
        let id = self.next_id;
        self.next_id += 1;
        self.reports.send(message(id, body)).await.map_err(|_| Status::cancelled("gone"))?;
        loop {
            if let Reply::Ack(ack) = self.next().await? {
                assert_eq!(ack.message_id, id);
                return Ok(ack.error);
            }
        }
    }

    pub(crate) fn offer(&self, generation: u64, nodes: usize) -> v1::Offer {
        let device = |index| v1::Device {
            index,
            product_name: "NVIDIA-A100-SXM4-40GB".to_owned(),
            architecture: "Ampere".to_owned(),
            memory_mib: 40_960,
            cuda_compute_capability: "8.0".to_owned(),
            driver_version: "550.107.02".to_owned(),
            sharing: Some(v1::Sharing { mode: Some(v1::sharing::Mode::Exclusive(v1::sharing::Exclusive {})) }),
            healthy: true,
            local_use_milli: 0,
            resource_name: "nvidia.com/gpu".to_owned(),
            ..v1::Device::default()
        };
        let node = |number: usize| v1::Node {
            id: format!("{number:016x}"),
            cpu_milli: 128_000,
            memory_mib: 1 << 20,
            devices: (0..8).map(device).collect(),
            schedulable: true,
            ..v1::Node::default()
        };
        v1::Offer {
            cluster: self.cluster.clone(),
            generation,
            nodes: (1..=nodes).map(node).collect(),
            deliveries: vec![v1::Delivery::Namespace.into(), v1::Delivery::VirtualNode.into()],
            data: None,
        }
    }

    /// Acts on every desired state as an agent does, until the stream ends. Each thing is said once.
    pub(crate) async fn obey(mut self) -> Status {
        loop {
            let reply = match self.next().await {
                Ok(reply) => reply,
                Err(status) => return status,
            };
            match reply {
                Reply::Desired(desired) => {
                    for (name, body) in self.wanted(&desired) {
                        if self.said.insert(name) {
                            let id = self.next_id;
                            self.next_id += 1;
                            if self.reports.send(message(id, body)).await.is_err() {
                                return Status::cancelled("gone");
                            }
                        }
                    }
                }
                Reply::Ack(ack) => assert_eq!(ack.error, None, "a report of {} was refused", self.cluster),
                Reply::Brokers(_) => {}
                Reply::Welcome(_) => panic!("welcomed twice"),
            }
        }
    }

    fn wanted(&self, desired: &v1::DesiredState) -> Vec<(String, Body)> {
        let mut all = Vec::new();
        for directive in &desired.peerings {
            self.wanted_of_peering(directive, &mut all);
        }
        for envelope in &desired.envelopes {
            assert_eq!(envelope.to, self.cluster);
            let ack = v1::EnvelopeAck {
                peering: envelope.peering.clone(),
                epoch: envelope.epoch,
                lease: envelope.lease.clone(),
                step: envelope.step.clone(),
                sequence: envelope.sequence,
            };
            match envelope.step.as_str() {
                // Opening the key makes the proof; the donor's word on the proof moves the peering.
                "psk" => {
                    let proof = self.envelope(&envelope.peering, envelope.epoch, "", "proof", &envelope.from);
                    all.push((format!("proof {} {}", envelope.peering, envelope.epoch), Body::Envelope(proof)));
                }
                "proof" => {
                    let report = v1::PeeringReport {
                        peering: envelope.peering.clone(),
                        epoch: envelope.epoch,
                        outcome: Some(peering_report::Outcome::Authenticated(peering_report::Authenticated {})),
                    };
                    all.push((format!("auth {} {}", envelope.peering, envelope.epoch), Body::PeeringReport(report)));
                }
                _ => {}
            }
            all.push((format!("ack {ack:?}"), Body::EnvelopeAck(ack)));
        }
        for lease in &desired.leases {
            self.wanted_of_lease(desired, lease, &mut all);
        }
        all
    }

    fn wanted_of_peering(&self, directive: &v1::PeeringDirective, all: &mut Vec<(String, Body)>) {
        use v1::PeeringState as S;
        let peering = directive.peering.as_ref().unwrap();
        let donor = peering.donor == self.cluster;
        let name = |what: &str| format!("{what} {} {}", peering.id, peering.epoch);
        let report =
            |outcome| v1::PeeringReport { peering: peering.id.clone(), epoch: peering.epoch, outcome: Some(outcome) };
        match peering.state() {
            S::Proposed | S::Keys => {
                assert!(directive.peer_identity_key.starts_with("ed25519:"));
                assert!(!directive.peer_institution_keys.is_empty(), "the examples' institutions have keys");
                let bundle = v1::KeyBundle {
                    peering: peering.id.clone(),
                    epoch: peering.epoch,
                    cluster: self.cluster.clone(),
                    side: if donor { v1::Side::Donor } else { v1::Side::Origin }.into(),
                    wireguard_public: vec![1; 32],
                    hpke_public: vec![2; HPKE_PUBLIC_BYTES],
                    endpoints: vec!["192.0.2.1:51871".to_owned()],
                    identity_key: self.identity_key.clone(),
                    voucher: Vec::new(),
                    signature: vec![3; 64],
                    network: Some(v1::ClusterNetwork {
                        pod_cidrs: vec![if donor { "10.45.0.0/16" } else { "10.44.0.0/16" }.to_owned()],
                        api_server: "192.0.2.1:6443".to_owned(),
                        liqo_cluster_id: self.cluster.clone(),
                        liqo_version: "v1.2.0".to_owned(),
                        tun: true,
                        liqo_network: false,
                    }),
                };
                all.push((name("keys"), Body::KeyBundle(bundle)));
            }
            S::Authenticating if donor => {
                let networks = [&directive.origin_keys, &directive.donor_keys]
                    .map(|keys| keys.as_ref().and_then(|keys| keys.network.clone()).unwrap().pod_cidrs);
                assert_eq!(networks, [["10.44.0.0/16"], ["10.45.0.0/16"]], "what was signed comes as it was");
                all.push((
                    name("psk"),
                    Body::Envelope(self.envelope(&peering.id, peering.epoch, "", "psk", &peering.origin)),
                ));
            }
            S::Establishing => {
                let outcome = peering_report::Outcome::Established(peering_report::Established { rtt_us: 900 });
                all.push((name("established"), Body::PeeringReport(report(outcome))));
            }
            S::Draining => {
                let outcome = peering_report::Outcome::Closed(peering_report::Closed {});
                all.push((name("closed"), Body::PeeringReport(report(outcome))));
            }
            _ => {}
        }
    }

    fn wanted_of_lease(&self, desired: &v1::DesiredState, lease: &v1::Lease, all: &mut Vec<(String, Body)>) {
        let donor = lease.placement.as_ref().unwrap().donor == self.cluster;
        let report = |outcome| {
            Body::LeaseReport(v1::LeaseReport {
                lease: lease.id.clone(),
                fencing_token: lease.fencing_token,
                outcome: Some(outcome),
            })
        };
        let directive = desired.peerings.iter().find_map(|d| d.peering.as_ref().filter(|p| p.id == lease.peering));
        let up = directive.is_some_and(|peering| peering.state() == v1::PeeringState::Established);
        if lease.state() == v1::LeaseState::Ending {
            all.push((format!("clean {}", lease.id), report(lease_report::Outcome::Clean(lease_report::Clean {}))));
        } else if up && (donor || lease.donor_ready) {
            let namespace = match lease.delivery() {
                v1::Delivery::VirtualNode => format!("liqo-tenant-{}", lease.origin),
                _ => format!("comity-{}", lease.id),
            };
            let ready = lease_report::Ready {
                namespace: if donor { namespace } else { String::new() },
                secret_name: if donor { String::new() } else { format!("comity-{}", lease.id) },
            };
            if let (true, Some(peering)) = (donor, directive) {
                let sealed = self.envelope(&peering.id, peering.epoch, &lease.id, "credential", &peering.origin);
                all.push((format!("credential {}", lease.id), Body::Envelope(sealed)));
            }
            all.push((format!("ready {}", lease.id), report(lease_report::Outcome::Ready(ready))));
        }
    }

    fn envelope(&self, peering: &str, epoch: u32, lease: &str, step: &str, to: &str) -> v1::Envelope {
        v1::Envelope {
            peering: peering.to_owned(),
            epoch,
            lease: lease.to_owned(),
            step: step.to_owned(),
            sequence: 1,
            from: self.cluster.clone(),
            to: to.to_owned(),
            encapsulated_key: vec![4; HPKE_ENCAPSULATED_BYTES],
            ciphertext: vec![5; 80],
            expires_at_ms: u64::MAX,
        }
    }
}

pub(crate) fn message(message_id: u64, body: Body) -> v1::AgentMessage {
    v1::AgentMessage { message_id, body: Some(body), traceparent: String::new() }
}
