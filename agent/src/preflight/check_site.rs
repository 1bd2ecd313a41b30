//! Whether this host can run the pods of leases, as the section `site` says.

use std::path::Path;

use comity_agent_site::SiteSettings;
use comity_runtime::checks::Check;

use super::capacity::{Capacity, any_salt};
use crate::observe::LocalReserve;
use crate::observe::file::{self, site_node};

const SITE_CHECK: &str = "site";
const REMEDY: &str = "see docs/host.md; without the section site the host lends nothing that runs";

pub(super) async fn check(
    settings: &SiteSettings,
    state: &Path,
    inventory: &Path,
    capacity: Option<Capacity>,
) -> Check {
    let devices = capacity.map_or(0, |capacity| u32::try_from(capacity.devices).unwrap_or(u32::MAX));
    let ready = match fits(inventory).await {
        Ok(()) => comity_agent_site::check(settings, state, devices).await,
        Err(reason) => Err(reason),
    };
    match ready {
        Ok(()) => Check::ok(SITE_CHECK, format!("podman runs guests; {} has all {devices} GPUs", settings.devices)),
        Err(reason) => Check::failed(SITE_CHECK, reason, REMEDY),
    }
}

/// Checks the inventory; one that cannot be read has its own check.
async fn fits(inventory: &Path) -> Result<(), String> {
    let Ok(text) = tokio::fs::read_to_string(inventory).await else { return Ok(()) };
    let Ok(mut nodes) = file::parse(inventory, &text, &any_salt(), &LocalReserve::default()) else { return Ok(()) };
    site_node::check(inventory, &mut nodes).map_err(|error| error.to_string())
}
