//! Two replicated stores behind one face: Comity's broker group and etcd, three members each on this machine, every
//! write through to the disk, every connection with mutual TLS.

mod comity;
mod etcd;
mod etcd_client;
pub(crate) mod origin;
pub(crate) mod terms;

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use anyhow::Result;

pub(crate) use comity::{ComityStore, channel};
pub(crate) use etcd::EtcdStore;

/// Members of each.
pub(crate) const MEMBERS: usize = 3;
/// Most writes that a store takes: a broker group queues 50,000 requests, and remembers the keys of 100,000 calls.
pub(crate) const MAX_WRITES: u64 = 45_000;

/// A store. Members are numbered from 0.
pub(crate) trait Store: Sized {
    /// Who writes.
    type Client: Client;

    /// Its name in reports.
    const NAME: &'static str;

    /// A client on a connection of its own, which begins with member `first`, and goes on to the others by itself.
    fn client(&self, first: usize) -> Result<Self::Client>;

    /// A client of one member alone, on a connection of its own.
    fn client_of(&self, member: usize) -> Result<Self::Client>;

    /// Waits until all members answer linearizable reads and agree who leads.
    async fn leader(&self) -> Result<usize>;

    /// Ends a member with SIGKILL.
    async fn kill(&mut self, member: usize) -> Result<()>;

    /// Starts a member that was killed.
    fn restart(&mut self, member: usize) -> Result<()>;

    /// The numbers of all writes, read linearizably from one member.
    async fn read_all(&self, member: usize) -> Result<HashSet<u64>>;

    /// Process ids of the members that run.
    fn pids(&self) -> Vec<u32>;

    /// The ends of its logs, for a message when something failed.
    fn logs(&self) -> String;
}

/// Writes. The same number may be written again.
pub(crate) trait Client: Clone + Send + Sync + 'static {
    /// One try, given up after `limit`: then it is not known whether it was written.
    fn write(&self, number: u64, limit: Duration) -> impl Future<Output = Result<()>> + Send;
}
