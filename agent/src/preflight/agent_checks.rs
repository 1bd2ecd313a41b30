//! Checks at any time, without a token.

use comity_runtime::Clock;
use comity_runtime::checks::{Check, CheckList, clock_check};

use super::capacity::any_salt;
use super::check_state_directory::MissingDirectory;
use super::{
    check_agent, check_brokers, check_certificate, check_configuration, check_gpus, check_inventory, check_kubernetes,
    check_membership, check_site, check_state_directory,
};
use crate::config::Config;

/// Makes the checks of a cluster that is a member, or will be.
pub async fn check_agent_host(config: &Config, clock: &dyn Clock) -> CheckList {
    let mut list = CheckList::default();
    list.extend(check_configuration::check(config));
    list.push(check_state_directory::check(&config.state_dir, MissingDirectory::Leave));
    match &config.inventory_file {
        Some(path) => {
            let capacity = check_inventory::check(path, &any_salt(), &config.reserve, &mut list).await;
            check_gpus::check(path, capacity, &mut list).await;
            if let Some(site) = &config.site {
                list.push(check_site::check(site, &config.state_dir, path, capacity).await);
            }
        }
        None => drop(check_kubernetes::check(config, &mut list).await),
    }
    if let Some(member) = check_certificate::check(config, clock, &mut list)
        && check_brokers::check(&member.brokers, &member.tls, &mut list).await
        && check_membership::check(config, &member, &mut list).await
    {
        list.push(match check_brokers::clock_difference(&member.brokers, &member.tls, clock).await {
            Ok(ahead_ms) => clock_check(ahead_ms),
            Err(reason) => Check::failed("clock", reason, "run comity raft status"),
        });
    }
    check_agent::check(config, &mut list).await;
    list
}
