//! etcd as a store: a write is a key with the bytes of Comity's request.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use comity_testkit::{Binaries, EtcdGroup};
use prost::Message as _;

use super::etcd_client::{EtcdClient, RangeRequest};
use super::numbered_requests::request;
use super::{Client, LEADER_TIMEOUT, MEMBERS, Store};
use crate::wait::{PATIENCE, until};

const PREFIX: &str = "write/";
/// The first key after those.
const PREFIX_END: &str = "write0";
/// Maximum keys per answer.
const MAX_PAGE_KEYS: i64 = 5_000;

/// Three members of etcd.
pub(crate) struct EtcdStore {
    group: EtcdGroup,
    _dir: tempfile::TempDir,
}

impl EtcdStore {
    /// Starts the group with etcd's defaults.
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) async fn start(binaries: &Binaries) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("comity-etcd-").tempdir()?;
        let group = EtcdGroup::start(binaries, dir.path())?;
        let store = Self { group, _dir: dir };
        store.leader().await.map_err(|error| error.context(store.logs()))?;
        Ok(store)
    }

    fn connect(&self, member: usize) -> Result<EtcdClient> {
        let endpoint = self.group.endpoints().get(member).context("members are 0 to 2")?;
        EtcdClient::new(endpoint, self.group.client())
    }

    /// The ids of a member and of the leader it knows, after a linearizable read.
    async fn look(&self, member: usize) -> Result<(u64, u64)> {
        let client = self.connect(member)?;
        let look = async {
            client.range(RangeRequest { key: PREFIX.into(), ..RangeRequest::default() }).await?;
            let status = client.status().await?;
            anyhow::Ok((status.header.context("a status has a header")?.member_id, status.leader))
        };
        tokio::time::timeout(LEADER_TIMEOUT, look).await.context("no answer")?
    }
}

impl Store for EtcdStore {
    type Client = Putter;
    const NAME: &'static str = "etcd";

    fn client(&self, first: usize) -> Result<Putter> {
        let members = (0..MEMBERS).map(|offset| self.connect((first + offset) % MEMBERS)).collect::<Result<_>>()?;
        Ok(Putter { members, now: Arc::default() })
    }

    fn client_of(&self, member: usize) -> Result<Putter> {
        Ok(Putter { members: [self.connect(member)?].into(), now: Arc::default() })
    }

    async fn leader(&self) -> Result<usize> {
        until("three members of etcd that agree who leads", PATIENCE, async || {
            let (mut ids, mut leaders) = (Vec::new(), HashSet::new());
            for member in 0..MEMBERS {
                let (id, leader) = self.look(member).await?;
                ids.push(id);
                leaders.insert(leader);
            }
            ensure!(leaders.len() == 1, "leaders: {leaders:?}");
            Ok(ids.iter().position(|id| leaders.contains(id)))
        })
        .await
    }

    async fn kill(&mut self, member: usize) -> Result<()> {
        Ok(self.group.kill(member)?)
    }

    fn restart(&mut self, member: usize) -> Result<()> {
        Ok(self.group.restart(member)?)
    }

    async fn read_all(&self, member: usize) -> Result<BTreeSet<u64>> {
        let client = self.connect(member)?;
        let (mut numbers, mut key) = (BTreeSet::new(), PREFIX.as_bytes().to_vec());
        loop {
            let request = RangeRequest { key, range_end: PREFIX_END.into(), limit: MAX_PAGE_KEYS, keys_only: true };
            let reply = client.range(request).await?;
            let last = reply.kvs.last().map(|entry| entry.key.clone());
            for entry in reply.kvs {
                let name = String::from_utf8(entry.key)?;
                numbers.insert(name.strip_prefix(PREFIX).context("a key of ours")?.parse()?);
            }
            match last {
                // The next key in the order of bytes.
                Some(last) if reply.more => key = [&last[..], &[0]].concat(),
                _ => return Ok(numbers),
            }
        }
    }

    fn pids(&self) -> Vec<u32> {
        self.group.pids()
    }

    fn logs(&self) -> String {
        self.group.logs()
    }
}

/// Writes to one member until that fails, then to the next.
#[derive(Clone)]
pub(crate) struct Putter {
    members: Arc<[EtcdClient]>,
    now: Arc<AtomicUsize>,
}

impl Client for Putter {
    async fn write(&self, number: u64, limit: Duration) -> Result<()> {
        let now = self.now.load(Ordering::Relaxed);
        let client = &self.members[now % self.members.len()];
        let put = client.put(format!("{PREFIX}{number}").into(), request(number).encode_to_vec());
        let outcome = tokio::time::timeout(limit, put).await.context("no answer").flatten();
        if outcome.is_err() {
            self.now.store(now + 1, Ordering::Relaxed);
        }
        outcome
    }
}
