//! A common interface to two replicated stores, Comity's broker group and etcd: three members each on this machine,
//! durable writes, mutual TLS.

mod comity_store;
mod etcd_client;
mod etcd_store;
pub(crate) mod numbered_requests;
pub(crate) mod store_policy;

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use anyhow::Result;

pub(crate) use comity_store::ComityStore;
pub(crate) use etcd_store::EtcdStore;

/// Members of each store.
pub(crate) const MEMBERS: usize = 3;
/// Maximum writes of a store: a broker group queues 50,000 requests and remembers the keys of 100,000 calls.
pub(crate) const MAX_WRITES: u64 = 45_000;

/// Timeout of asking one member who leads.
const LEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// A replicated store. Members are numbered from 0.
pub(crate) trait Store: Sized {
    /// The client type.
    type Client: Client;

    /// The name in reports.
    const NAME: &'static str;

    /// A client with its own connection, which starts with member `first` and fails over to the others by itself.
    fn client(&self, first: usize) -> Result<Self::Client>;

    /// A client of a single member, with its own connection.
    fn client_of(&self, member: usize) -> Result<Self::Client>;

    /// Waits until all members answer linearizable reads and agree on the leader; returns it.
    async fn leader(&self) -> Result<usize>;

    /// Kills a member with SIGKILL.
    async fn kill(&mut self, member: usize) -> Result<()>;

    /// Starts a member that was killed.
    fn restart(&mut self, member: usize) -> Result<()>;

    /// The numbers of all writes, read linearizably from one member.
    async fn read_all(&self, member: usize) -> Result<BTreeSet<u64>>;

    /// Process ids of the running members.
    fn pids(&self) -> Vec<u32>;

    /// The ends of its logs, for error messages.
    fn logs(&self) -> String;
}

/// Writes numbers; writing a number twice is allowed.
pub(crate) trait Client: Clone + Send + Sync + 'static {
    /// Tries once, for at most `limit`. After an error the write may have taken effect.
    fn write(&self, number: u64, limit: Duration) -> impl Future<Output = Result<()>> + Send;
}
