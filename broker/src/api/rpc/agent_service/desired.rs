//! Encodes a cluster's desired state; copies unchanged leases from the previous encoding.

use bytes::Bytes;
use comity_core::State;
use comity_proto::v1;
use comity_types::{ClusterId, LeaseId};
use prost::Message as _;

use crate::api::convert::{agent, lease};

/// Encodes one cluster's successive desired states.
#[derive(Debug, Default)]
pub(super) struct DesiredWriter {
    last: Bytes,
    /// Leases in `last`, by id.
    leases: Vec<EncodedLease>,
}

/// An encoded lease: its revision and byte range.
#[derive(Debug)]
struct EncodedLease {
    id: LeaseId,
    revision: u64,
    start: usize,
    end: usize,
}

impl DesiredWriter {
    /// The complete desired state of `cluster`: an encoded [`v1::DesiredState`].
    pub(super) fn write(&mut self, state: &State, cluster: &ClusterId) -> Bytes {
        let rest = agent::desired_without_leases(state, cluster);
        // Room for growth without reallocation.
        let mut bytes = Vec::with_capacity(rest.encoded_len() + self.last.len() + self.last.len() / 16);
        bytes.extend(rest.encode_to_vec());
        let mut leases = Vec::with_capacity(self.leases.len() + self.leases.len() / 16);
        let mut before = self.leases.iter().peekable();
        for (id, held) in state.leases_of(cluster) {
            while before.next_if(|written| written.id < id).is_some() {}
            let start = bytes.len();
            match before.next_if(|written| written.id == id) {
                Some(written) if written.revision == held.revision => {
                    bytes.extend_from_slice(&self.last[written.start..written.end]);
                }
                // Concatenated protobuf messages merge; their lists concatenate.
                _ => {
                    let one =
                        v1::DesiredState { leases: vec![lease::to_proto(id, held)], ..v1::DesiredState::default() };
                    bytes.extend(one.encode_to_vec());
                }
            }
            leases.push(EncodedLease { id, revision: held.revision, start, end: bytes.len() });
        }
        self.last = bytes.into();
        self.leases = leases;
        self.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use comity_core::demand::{DeviceChoice, GpuDemand, Isolation, Share, Topology};
    use comity_core::lease::{Lease, SideState};
    use comity_core::meter::Meter;
    use comity_core::placement::Placement;
    use comity_core::{Millis, Records, Timestamp};
    use comity_types::{ClassName, Delivery, InstitutionId, LeaseState, PeeringId, RequestId, TenantId};

    use super::*;

    fn cluster(name: &str) -> ClusterId {
        ClusterId::parse(name, "cluster").expect("a label")
    }

    /// A lease that `campus` has of `centre`.
    fn held(number: u64) -> Lease {
        let class = ClassName::parse("frontier", "class").expect("a label");
        let placement = Placement {
            donor: cluster("centre"),
            nodes: Default::default(),
            offer_generation: 1,
            resource_name: "nvidia.com/gpu".to_owned(),
            resource_count: 1,
            profile: None,
        };
        Lease {
            request: RequestId(number),
            tenant: TenantId::parse("physics", "tenant").expect("a label"),
            origin: cluster("campus"),
            placement,
            peering: PeeringId(1),
            gpus: GpuDemand {
                devices: DeviceChoice::Class(class.clone()),
                share: Share::Whole,
                count: 1,
                cpu_milli_per_gpu: 8_000,
                memory_mib_per_gpu: 65_536,
                isolation: Isolation::None,
                gpu_type: None,
            },
            topology: Topology::default(),
            data: Vec::new(),
            purpose: String::new(),
            delivery: Delivery::Namespace,
            class,
            institution: InstitutionId::parse("polytechnic", "institution").expect("a label"),
            agreement: None,
            term: Millis(1),
            state: LeaseState::Placed,
            end_reason: None,
            fencing_token: number,
            submitted_by: String::new(),
            ends_by: None,
            meter: Meter::Waits { reserved_milli: 0 },
            placed_at: Timestamp(1),
            hold_until: Timestamp(9),
            active_at: None,
            expires_at: None,
            ended_at: None,
            donor_side: SideState::Pending,
            origin_side: SideState::Pending,
            donor_namespace: String::new(),
            target_namespace: String::new(),
            secret_name: String::new(),
            traceparent: String::new(),
            reclaim: None,
            checkpointed_at: None,
            moved_from: None,
            moved_to: None,
            joins: false,
            release_idle: None,
            idle_since: None,
            ending_at: None,
            message: "the first".to_owned(),
            revision: 1,
        }
    }

    /// Writes the next state, asserts that it equals the encoded messages, and returns its number of leases.
    fn next(writer: &mut DesiredWriter, records: &mut Records) -> usize {
        records.revision += 1;
        let state = &State::from(records.clone());
        let campus = cluster("campus");
        let leases: Vec<v1::Lease> = state.leases_of(&campus).map(|(id, held)| lease::to_proto(id, held)).collect();
        let wanted = v1::DesiredState { leases, ..agent::desired_without_leases(state, &campus) };
        let written = v1::DesiredState::decode(writer.write(state, &campus)).expect("a desired state");
        assert_eq!(written, wanted);
        written.leases.len()
    }

    #[test]
    fn leases_come_change_and_go() {
        let (mut writer, mut records) = (DesiredWriter::default(), Records::default());
        assert_eq!(next(&mut writer, &mut records), 0);
        for number in [3, 5, 7] {
            records.leases.insert(LeaseId(number), held(number));
        }
        assert_eq!(next(&mut writer, &mut records), 3);
        assert_eq!(next(&mut writer, &mut records), 3);
        for number in [1, 4, 9] {
            records.leases.insert(LeaseId(number), held(number));
        }
        records.leases.remove(&LeaseId(3));
        let changed = Lease { message: "a longer word than before".to_owned(), revision: 2, ..held(5) };
        records.leases.insert(LeaseId(5), changed);
        assert_eq!(next(&mut writer, &mut records), 5);
        records.leases.retain(|id, _| *id == LeaseId(9));
        assert_eq!(next(&mut writer, &mut records), 1);
        records.leases.retain(|_, _| false);
        assert_eq!(next(&mut writer, &mut records), 0);
    }

    #[test]
    fn what_did_not_change_is_not_written_again() {
        let (mut writer, mut records) = (DesiredWriter::default(), Records::default());
        records.leases.insert(LeaseId(1), held(1));
        assert_eq!(next(&mut writer, &mut records), 1);
        // No command changes a lease and leaves its revision.
        if let Some(held) = records.leases.get_mut(&LeaseId(1)) {
            held.message = "unnoticed".to_owned();
        }
        let written =
            v1::DesiredState::decode(writer.write(&State::from(records), &cluster("campus"))).expect("a desired state");
        assert_eq!(written.leases.first().map(|lease| lease.message.as_str()), Some("the first"));
    }
}
