//! Founds a new group on the configured broker, once all founding members answer and have empty disks.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use comity_core::limits::MAX_VOTERS;
use comity_proto::raft::v1::HelloRequest;
use tracing::info;

use crate::group::Group;
use crate::group::group_error::GroupError;
use crate::group::members::HELLO_TIMEOUT;
use crate::group::members::membership::check_member;
use crate::replication::identity::GroupId;
use crate::replication::member::MemberNode;

/// Interval of rounds.
const FOUNDING_ROUND_INTERVAL: Duration = Duration::from_millis(200);

/// Outcome of founding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Founded {
    /// This broker founded the group, now or before.
    Here,
    /// A founding member is in a group already; this broker joins that group.
    JoinsInstead,
}

impl Group {
    /// Founds the group as its first voter and admits the other configured members. Waits until all of them answer that
    /// their disks are empty.
    ///
    /// # Errors
    /// [`GroupError::Members`] for an invalid list of members.
    pub async fn found(&self) -> Result<Founded, GroupError> {
        let inner = &self.inner;
        let (me, members) = (inner.config.id, &inner.config.members);
        let Some(address) = members.get(&me) else {
            return Err(GroupError::Members(format!("broker {me} is not among them; name it as well")));
        };
        if members.len().is_multiple_of(2) || members.len() > MAX_VOTERS {
            let reason = format!("{} voters; want an odd number up to {MAX_VOTERS}, best 1 or 3", members.len());
            return Err(GroupError::Members(reason));
        }
        for (id, address) in members {
            check_member(*id, address)?;
        }
        if inner.raft.is_initialized().await.map_err(|error| GroupError::Raft(error.to_string()))? {
            return Ok(Founded::Here);
        }
        if inner.eligibility.group().is_some() {
            return Ok(Founded::JoinsInstead);
        }
        let mut told = Vec::new();
        loop {
            match self.ask_founders().await {
                Others::InAGroup(id) => {
                    info!(broker = id, "is in a group already; this broker founds none, and joins that one");
                    return Ok(Founded::JoinsInstead);
                }
                Others::Empty => break,
                Others::Missing(ids) if ids != told => {
                    info!(brokers = ?ids, "waiting for these founding members to be started");
                    told = ids;
                }
                Others::Missing(_) => {}
            }
            tokio::time::sleep(FOUNDING_ROUND_INTERVAL).await;
        }
        let group = GroupId::draw();
        inner.eligibility.adopt(group.clone()).await?;
        // No user command is acknowledged before a majority of the founding members can store it.
        inner.forming.store(true, Ordering::Release);
        let node = MemberNode { address: address.clone(), incarnation: inner.eligibility.incarnation() };
        inner
            .raft
            .initialize(BTreeMap::from([(me, node)]))
            .await
            .map_err(|error| GroupError::Raft(error.to_string()))?;
        info!(broker = me, %group, "a new group was founded");
        Ok(Founded::Here)
    }

    async fn ask_founders(&self) -> Others {
        let inner = &self.inner;
        let hello = HelloRequest {
            broker: inner.config.id,
            incarnation: inner.eligibility.incarnation().as_str().to_owned(),
            only_asks: true,
            ..HelloRequest::default()
        };
        let others = inner.config.members.iter().filter(|(id, _)| **id != inner.config.id);
        let asked = others.map(|(id, address)| {
            let hello = hello.clone();
            async move { (*id, inner.peers.hello(*id, address, hello, HELLO_TIMEOUT).await) }
        });
        let mut missing = Vec::new();
        for (id, answer) in futures::future::join_all(asked).await {
            match answer {
                Ok(answer) if answer.has_log || !answer.group.is_empty() => return Others::InAGroup(id),
                Ok(_) => {}
                Err(_) => missing.push(id),
            }
        }
        if missing.is_empty() { Others::Empty } else { Others::Missing(missing) }
    }
}

/// The other founding members.
enum Others {
    /// All answer and are empty.
    Empty,
    /// These do not answer.
    Missing(Vec<u64>),
    /// This one has a log.
    InAGroup(u64),
}
