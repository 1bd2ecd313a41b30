//! Drills of single faults: what clients and operators observe.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::BrokerChannel;
use tonic::Code;

use super::disk::Writes;
use super::group::{GROUP_RECOVERY_TIMEOUT, Group, permanent_tenant};
use super::host::SEATS;
use crate::federation::policy_documents::CLASS;
use crate::stores::numbered_requests::{SILENT_ORIGIN, request_of};
use crate::wait::until;

/// Limit against hanging.
const ANSWER: Duration = Duration::from_secs(60);
/// Requests before and during a fault.
const BEFORE: u64 = 20;
const MOST: u64 = 2_000;
/// The first request while the leader is isolated.
const MEANWHILE: u64 = 1_000;

/// Observations of an isolated leader.
#[derive(Debug)]
pub struct Isolated {
    /// Time from the cut to the answer of a call that began then, on a channel to the leader.
    pub channel: Duration,
    /// Duration of `comity request submit` with the leader first in its list of brokers.
    pub command: Duration,
    /// Time from the cut until the leader's metric reports that it has stepped down.
    pub metric: Duration,
    /// Number of brokers that claimed to lead, before and after the connection was restored.
    pub leaders: (usize, usize),
    /// Whether the isolated leader refuses calls.
    pub alone: Result<(), Code>,
    /// Requests acknowledged during the fault that some broker lacks at the end.
    pub lost: Vec<u64>,
}

/// Isolates the leader, which clients can still reach, and reconnects it.
///
/// # Errors
/// When the group does not react as expected.
pub async fn isolate_leader() -> Result<Isolated> {
    let group = Group::start().await?;
    let isolated = watch_isolation(&group).await;
    isolated.map_err(|error| error.context(group.logs()))
}

async fn watch_isolation(group: &Group) -> Result<Isolated> {
    let leader = group.leader().await.context("a leader")?;
    let (channel, command) = (group.channel_from_seat("alice", leader)?, group.command_from(leader)?);
    submit(&channel, 0).await.map_err(|status| anyhow!("before: {status}"))?;
    ensure!(group.claims_to_lead(leader).await?, "the metric of the leader is not 1");

    let cut = Instant::now();
    group.hosts.isolate(leader)?;
    let called = async {
        submit(&channel, MEANWHILE).await.map_err(|status| anyhow!("by the channel: {status}"))?;
        anyhow::Ok(cut.elapsed())
    };
    let told = async {
        until("the metric to be 0", GROUP_RECOVERY_TIMEOUT, async || {
            Ok((!group.claims_to_lead(leader).await?).then_some(()))
        })
        .await?;
        anyhow::Ok(cut.elapsed())
    };
    let (called, metric) = tokio::try_join!(called, told)?;
    let began = Instant::now();
    let (note, tenant) = ((MEANWHILE + 1).to_string(), permanent_tenant());
    let submitted = ["request", "submit", "--tenant", &tenant, "--origin", SILENT_ORIGIN, "--class", CLASS];
    let more = ["--gpus", "1", "--note", &note, "--queue-anyway"];
    command.json("alice", &[&submitted[..], &more].concat()).await?;
    let took = began.elapsed();
    let alone = submit(&group.channel_to("alice", group.member(leader)?)?, MEANWHILE + 2).await;
    let alone = alone.map_err(|status| status.code());
    let before = leaders(group).await?;

    group.hosts.join()?;
    group.await_convergence().await?;
    let mut lost = Vec::new();
    for seat in SEATS {
        let there = group.queued_on(seat).await?;
        lost.extend([0, MEANWHILE, MEANWHILE + 1].into_iter().filter(|number| !there.contains(number)));
    }
    let after = leaders(group).await?;
    Ok(Isolated { channel: called, command: took, metric, leaders: (before, after), alone, lost })
}

async fn leaders(group: &Group) -> Result<usize> {
    let mut leaders = 0;
    for seat in SEATS {
        leaders += usize::from(group.claims_to_lead(seat).await?);
    }
    Ok(leaders)
}

async fn submit(channel: &BrokerChannel, number: u64) -> Result<(), tonic::Status> {
    let message = request_of(&permanent_tenant(), number, 0);
    let mut client = RequestServiceClient::new(channel.clone());
    let answer = tokio::time::timeout(ANSWER, client.submit_request(message)).await;
    answer.map_err(|_| tonic::Status::deadline_exceeded(format!("no answer within {ANSWER:?}")))?.map(drop)
}

/// The fault of a running broker's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskDrill {
    /// It is remounted read-only, as the kernel does after an error: EROFS.
    ReadOnly,
    /// Its device fails: EIO.
    Failing,
}

/// Observations of a broken disk.
#[derive(Debug)]
pub struct BrokenDisk {
    /// The broker's log until it ended.
    pub running: String,
    /// Its log of a start on the same disk.
    pub started: String,
    /// Acknowledged requests.
    pub acknowledged: usize,
    /// Acknowledged requests that some broker lacks at the end.
    pub lost: Vec<u64>,
}

/// Breaks the leader's disk during writes, restarts it on the broken disk, repairs the disk, and restarts it again.
///
/// # Errors
/// When the broker keeps running without its disk, or does not recover.
pub async fn break_disk(drill: DiskDrill) -> Result<BrokenDisk> {
    let mut group = Group::start().await?;
    let broken = watch_disk(&mut group, drill).await;
    broken.map_err(|error| error.context(group.logs()))
}

async fn watch_disk(group: &mut Group, drill: DiskDrill) -> Result<BrokenDisk> {
    let seat = group.leader().await.context("a leader")?;
    let (broker, channel) = (group.member(seat)?, group.channel_from_seat("alice", seat)?);
    let mut acknowledged = Vec::new();
    for number in 0..BEFORE {
        submit(&channel, number).await.map_err(|status| anyhow!("before: {status}"))?;
        acknowledged.push(number);
    }
    let said = group.log_on(seat)?.len();
    let writes = match drill {
        DiskDrill::ReadOnly => Writes::ReadOnly,
        DiskDrill::Failing => Writes::Failing,
    };
    group.hosts.disk(seat)?.disturb(Duration::ZERO, writes)?;
    let mut ended = false;
    for number in BEFORE..MOST {
        // One that is refused may have been carried out all the same.
        if submit(&channel, number).await.is_ok() {
            acknowledged.push(number);
        }
        ended = group.ended()?.contains(&broker);
        if ended {
            break;
        }
    }
    ensure!(ended, "broker {broker} continues, {MOST} writes after its disk broke");
    let log = group.log_on(seat)?;
    let running = log.get(said..).context("logs grow")?.to_owned();

    group.start_on(seat)?;
    until("a start on the broken disk to end", GROUP_RECOVERY_TIMEOUT, async || {
        Ok(group.ended()?.contains(&broker).then_some(()))
    })
    .await?;
    let again = group.log_on(seat)?;
    let started = again.get(log.len()..).context("logs grow")?.to_owned();

    group.hosts.disk(seat)?.disturb(Duration::ZERO, Writes::Done)?;
    group.start_on(seat)?;
    group.await_convergence().await?;
    let mut lost = Vec::new();
    for seat in SEATS {
        let there = group.queued_on(seat).await?;
        lost.extend(acknowledged.iter().filter(|number| !there.contains(number)));
    }
    Ok(BrokenDisk { running, started, acknowledged: acknowledged.len(), lost })
}
