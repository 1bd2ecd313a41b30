//! Checks before a cluster joins. None of them spends the token.

use comity_runtime::checks::{Check, CheckList};
use comity_runtime::join_token::PendingKey;
use comity_runtime::{ClientTls, Clock, Entropy, JoinToken};
use comity_types::Side;

use super::capacity::{Capacity, any_salt};
use super::check_state_directory::MissingDirectory;
use super::check_token::TokenQuestion;
use super::check_udp::{UDP_CHECK, UdpProbe};
use super::{
    check_brokers, check_configuration, check_inventory, check_kubernetes, check_state_directory, check_token,
};
use crate::config::Config;

/// A check that an operator may skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Skippable {
    /// Whether the brokers reach the fabric's UDP port.
    Udp,
}

/// Settings of the checks before joining.
pub struct JoinChecks<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The token, which is not spent.
    pub token: &'a JoinToken,
    /// Content of the inventory file, if it is not written yet.
    pub inventory_draft: Option<&'a str>,
    /// Whether nothing may be written.
    pub dry_run: bool,
    /// Checks that are left out.
    pub skip: &'a [Skippable],
    /// Time.
    pub clock: &'a dyn Clock,
    /// Randomness.
    pub entropy: &'a dyn Entropy,
}

impl JoinChecks<'_> {
    /// Makes all checks.
    pub async fn run(&self) -> CheckList {
        let mut list = CheckList::default();
        list.extend(check_configuration::check(self.config));
        let missing = if self.dry_run { MissingDirectory::Leave } else { MissingDirectory::Make };
        list.push(check_state_directory::check(&self.config.state_dir, missing));
        let capacity = self.capacity(&mut list).await;
        let brokers = &self.token.brokers;
        let tls = ClientTls::pinned(self.token.ca_sha256, self.token.id.trust_domain().clone());
        let reached = check_brokers::check(brokers, &tls, &mut list).await;
        let probe = self.probe(&mut list).await;
        if !reached {
            list.push(Check::skipped("token", "no broker can be asked"));
            return list;
        }
        let Ok(cluster) = self.token.cluster() else {
            let found = format!("the join token is for {}, not for a cluster", self.token.id);
            list.push(Check::failed("token", found, "make one with 'comity cluster invite CLUSTER'"));
            return list;
        };
        let is_pending = PendingKey::exists(&self.config.state_dir.join("identity"), self.token);
        let question = TokenQuestion { token: self.token, cluster, clock: self.clock, is_pending };
        let Some(answer) = check_token::check(&question, brokers, &tls, probe.as_ref(), &mut list).await else {
            return list;
        };
        if let Some(probe) = probe {
            let lends = capacity.devices > 0 && self.config.sharing.enabled;
            let side = if lends { Side::Donor } else { Side::Origin };
            list.push(probe.check(&answer.probes, side).await);
        }
        list
    }

    async fn capacity(&self, list: &mut CheckList) -> Capacity {
        let found = match (&self.config.inventory_file, self.inventory_draft) {
            (Some(path), Some(text)) => {
                check_inventory::check_text(path, text, &any_salt(), &self.config.reserve, list)
            }
            (Some(path), None) => check_inventory::check(path, &any_salt(), &self.config.reserve, list).await,
            (None, _) => check_kubernetes::check(self.config, list).await,
        };
        found.unwrap_or_default()
    }

    async fn probe(&self, list: &mut CheckList) -> Option<UdpProbe> {
        if self.skip.contains(&Skippable::Udp) {
            list.push(Check::skipped(UDP_CHECK, "--skip udp"));
            return None;
        }
        match UdpProbe::listen(self.config, self.entropy).await {
            Ok(probe) => Some(probe),
            Err(check) => {
                list.push(check);
                None
            }
        }
    }
}
