//! The inventory file, read as the running agent reads it.

use std::path::Path;

use comity_agent_model::node_id::NodeSalt;
use comity_proto::v1;
use comity_runtime::checks::{Check, CheckList};

use super::capacity::Capacity;
use crate::observe::LocalReserve;
use crate::observe::file::{self, InventoryFileError};

const INVENTORY_CHECK: &str = "inventory";
const INVENTORY_REMEDY: &str = "`comity-agent sample-inventory` prints an inventory with every field";

pub(super) async fn check(
    path: &Path,
    salt: &NodeSalt,
    reserve: &LocalReserve,
    list: &mut CheckList,
) -> Option<Capacity> {
    let text = match tokio::fs::read_to_string(path).await {
        Ok(text) => text,
        Err(error) => {
            list.push(Check::failed(
                INVENTORY_CHECK,
                format!("cannot read {}: {error}", path.display()),
                INVENTORY_REMEDY,
            ));
            return None;
        }
    };
    check_text(path, &text, salt, reserve, list)
}

pub(super) fn check_text(
    path: &Path,
    text: &str,
    salt: &NodeSalt,
    reserve: &LocalReserve,
    list: &mut CheckList,
) -> Option<Capacity> {
    match file::parse(path, text, salt, reserve) {
        Ok(nodes) => {
            let capacity = capacity(&nodes);
            list.push(summary(INVENTORY_CHECK, capacity));
            Some(capacity)
        }
        Err(InventoryFileError::Wrong(mistakes)) => {
            let failed = |mistake: &file::InventoryMistake| Check::failed(INVENTORY_CHECK, mistake.to_string(), "");
            list.extend(mistakes.iter().map(failed));
            if let Some(last) = list.checks.last_mut() {
                last.remedy = INVENTORY_REMEDY.to_owned();
            }
            None
        }
        Err(error) => {
            list.push(Check::failed(INVENTORY_CHECK, error.to_string(), INVENTORY_REMEDY));
            None
        }
    }
}

pub(super) fn capacity(nodes: &[v1::Node]) -> Capacity {
    Capacity { nodes: nodes.len(), devices: nodes.iter().map(|node| node.devices.len()).sum() }
}

/// The check of a readable inventory.
pub(super) fn summary(name: &str, capacity: Capacity) -> Check {
    let Capacity { nodes, devices } = capacity;
    let detail = match (nodes, devices) {
        (0, _) => "no nodes: this cluster can borrow and has nothing to lend".to_owned(),
        (1, 0) => "1 node without GPUs: this cluster can borrow and has nothing to lend".to_owned(),
        (_, 0) => format!("{nodes} nodes without GPUs: this cluster can borrow and has nothing to lend"),
        _ => format!("nodes: {nodes}, GPUs: {devices}"),
    };
    Check::ok(name, detail)
}
