//! A cluster's desired state as bytes: what did not change is copied from the one before.

use bytes::Bytes;
use comity_core::{ClusterId, LeaseId, State};
use comity_proto::v1;
use prost::Message as _;

use crate::convert::{agent, lease};

/// Writes one cluster's desired states, one after the other, and remembers the last one.
#[derive(Debug, Default)]
pub(super) struct DesiredWriter {
    last: Bytes,
    /// Leases of the last one, by id.
    leases: Vec<Written>,
}

/// A lease at a revision, and where it is in the bytes.
#[derive(Debug)]
struct Written {
    id: LeaseId,
    revision: u64,
    start: usize,
    end: usize,
}

impl DesiredWriter {
    /// What `cluster` must be, as a whole: an encoded [`v1::DesiredState`].
    pub(super) fn write(&mut self, state: &State, cluster: &ClusterId) -> Bytes {
        let rest = agent::desired_but_leases(state, cluster);
        // Room for some more leases than before: to grow is to copy.
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
                // Encoded messages one after the other are one message, and its lists one list.
                _ => {
                    let one =
                        v1::DesiredState { leases: vec![lease::to_proto(id, held)], ..v1::DesiredState::default() };
                    bytes.extend(one.encode_to_vec());
                }
            }
            leases.push(Written { id, revision: held.revision, start, end: bytes.len() });
        }
        self.last = bytes.into();
        self.leases = leases;
        self.last.clone()
    }
}
