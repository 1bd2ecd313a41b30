//! Changes members as a maintainer would, while clients run.

use std::time::Duration;

use anyhow::{Result, ensure};
use comity_proto::v1;
use comity_proto::v1::change_members_request::Change;
use tokio::time::sleep;

use super::super::broker_faults::BrokerFault;
use super::super::group::Group;
use super::{BrokerInjector, next};
use crate::wait::until;

/// Timeout of a member change, including retries.
const MEMBER_CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Who gets SIGKILL in the middle of a replacement.
#[derive(Clone, Copy)]
pub(super) enum Victim {
    /// The new broker.
    Successor,
    /// The current leader, perhaps the replaced broker.
    Leader,
}

impl BrokerInjector<'_> {
    /// Transfers leadership to the next seat, then to the member with the longest log.
    pub(super) async fn transfer(&mut self, fault: &BrokerFault, from: u64) -> Result<()> {
        let named = next(from);
        let led = self.leads(self.group.member(named)?, |leader| leader == named).await;
        self.noted("the leader that was named leads", led);
        self.hold(fault).await?;
        // Number 0 selects the member with the longest log.
        let led = self.leads(0, |leader| leader != named).await;
        self.noted("the leader hands over", led);
        Ok(())
    }

    async fn leads(&self, broker: u64, right: impl Fn(u64) -> bool) -> Result<()> {
        until("the leader", MEMBER_CHANGE_TIMEOUT, async || {
            let transfer = Change::TransferLeader(v1::TransferLeader { id: broker });
            Group::change(self.group.channel_from("admin", 0)?, transfer).await?;
            let leader = self.group.leader().await;
            ensure!(leader.is_some_and(&right), "the seat of the leader is {leader:?}");
            Ok(Some(()))
        })
        .await
    }

    /// Replaces the member on a seat. Starts again if `victim` is killed meanwhile.
    pub(super) async fn replace(&mut self, fault: &BrokerFault, seat: u64, victim: Option<Victim>) -> Result<()> {
        let successor = self.group.seat_successor(seat).await?;
        let changes = successor.changes();
        let (broken, after) = fault.breaks;
        if let Some(victim) = victim {
            for change in changes.iter().take(broken) {
                self.changed(change).await;
            }
            let channel = self.group.channel_from("admin", 0)?;
            let underway = tokio::spawn(Group::change(channel, changes[broken].clone()));
            sleep(after).await;
            let victim = match victim {
                Victim::Successor => successor.new,
                Victim::Leader => self.group.member(self.group.leader().await.unwrap_or(seat))?,
            };
            self.group.kill_broker(victim).await?;
            sleep(fault.lasts).await;
            self.group.start_broker(victim)?;
            // Done or not: it is asked for again.
            let _ = underway.await?;
        }
        for change in &changes {
            if matches!(change, Change::Remove(_)) && victim.is_none() {
                // Four vote.
                sleep(fault.lasts).await;
            }
            self.changed(change).await;
        }
        let retired = self.group.retire(&successor).await;
        self.noted("the broker that was replaced is refused", retired);
        Ok(())
    }

    /// Repeats a change until it succeeds.
    async fn changed(&mut self, change: &Change) {
        let done = until("the change", MEMBER_CHANGE_TIMEOUT, async || {
            Group::change(self.group.channel_from("admin", 0)?, change.clone()).await.map(Some)
        });
        let done = done.await;
        self.noted(&format!("{change:?} is done within {MEMBER_CHANGE_TIMEOUT:?}"), done);
    }

    fn noted(&mut self, wanted: &str, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.violated(format!("not so: {wanted}: {error:#}"));
        }
    }
}
