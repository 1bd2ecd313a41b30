//! How many brokers of the group answer.

use std::time::Duration;

use comity_proto::v1;
use comity_proto::v1::raft_service_client::RaftServiceClient;
use comity_runtime::tls::BrokerEndpoints;
use comity_runtime::{BrokerChannel, ClientTls};
use serde::Serialize;

use super::super::raft::broker_status;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::session::{Session, call};

/// A broker that does not answer within this time counts as silent.
const BROKER_LIMIT: Duration = Duration::from_secs(2);

/// The broker group, as far as the caller may see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupHealth {
    /// Whether the caller may read the group's status.
    pub(super) visible: bool,
    /// Number of the leader.
    pub(super) leader: Option<u64>,
    /// Number of members.
    pub(super) members: usize,
    /// Addresses of the members that do not answer.
    pub(super) silent: Vec<String>,
}

impl GroupHealth {
    /// Asks each member.
    ///
    /// # Errors
    /// [`Failure`] if no broker answers. A caller who may not read the status gets one that is not visible.
    pub(super) async fn read(session: &Session, channel: &BrokerChannel) -> Result<Self, Failure> {
        let mut client = RaftServiceClient::new(channel.clone());
        let status = match call(client.get_raft_status(v1::GetRaftStatusRequest {})).await {
            Ok(status) => status,
            Err(failure) if failure.exit == Exit::Permission => return Ok(Self::default()),
            Err(failure) => return Err(failure),
        };
        let tls = session.tls()?;
        let asked = status.members.iter().map(|member| answers(&member.client_address, &tls));
        let answered = futures::future::join_all(asked).await;
        let silent = status.members.iter().zip(answered).filter(|(_, answered)| !answered);
        Ok(Self {
            visible: true,
            leader: Some(status.leader).filter(|leader| *leader > 0),
            members: status.members.len(),
            silent: silent.map(|(member, _)| member.client_address.clone()).collect(),
        })
    }

    /// For people: `3 of 3 answer, broker 2 leads`.
    pub(super) fn text(&self) -> String {
        if !self.visible {
            return "only operators and maintainers may see the group".to_owned();
        }
        let leader = self.leader.map_or_else(|| "no leader".to_owned(), |leader| format!("broker {leader} leads"));
        format!("{} of {} answer, {leader}", self.members - self.silent.len(), self.members)
    }
}

async fn answers(address: &str, tls: &ClientTls) -> bool {
    let Ok(endpoint) = BrokerEndpoints::new([address]) else { return false };
    matches!(tokio::time::timeout(BROKER_LIMIT, broker_status(&endpoint, tls)).await, Ok(Ok(_)))
}
