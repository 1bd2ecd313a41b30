//! The inventory of a host that runs the pods of leases itself (`site` in its configuration).

use std::path::Path;

use comity_proto::v1;
use comity_proto::v1::sharing::Mode;

use super::InventoryFileError;

/// Checks that the host can hand out what the inventory offers, and marks that containers get exactly their devices.
///
/// # Errors
/// [`InventoryFileError::Site`].
pub fn check(path: &Path, nodes: &mut [v1::Node]) -> Result<(), InventoryFileError> {
    let refuse = |reason: String| Err(InventoryFileError::Site { path: path.to_owned(), reason });
    if nodes.len() > 1 {
        return refuse(format!("it has {} nodes, and the section site runs pods on one, this host", nodes.len()));
    }
    for node in nodes {
        for device in &node.devices {
            match device.sharing.as_ref().and_then(|sharing| sharing.mode.as_ref()) {
                None | Some(Mode::Exclusive(_) | Mode::TimeSlicing(_)) => {}
                Some(Mode::Mig(_) | Mode::Mps(_) | Mode::Fractional(_)) => {
                    return refuse(
                        "sharing: the section site hands out whole GPUs and time slices; use exclusive or timeSlicing"
                            .to_owned(),
                    );
                }
            }
        }
        node.enforces.get_or_insert_default().devices = true;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::observe::LocalReserve;
    use crate::observe::file::parse;
    use comity_agent_model::node_id::NodeSalt;

    fn node(name: &str, sharing: &str) -> String {
        format!(
            "- {{name: {name}, cpu: 8, memory: 16Gi, gpus: [{{count: 1, product: A, memoryMiB: 8192, architecture: ampere, \
             computeCapability: '8.6', driverVersion: '550', sharing: {sharing}}}]}}\n"
        )
    }

    fn checked(nodes: &str) -> Result<Vec<v1::Node>, String> {
        let path = Path::new("hosts.yaml");
        let text = format!("nodes:\n{nodes}");
        let mut nodes = parse(path, &text, &NodeSalt::new([1; 32]), &LocalReserve::default()).unwrap();
        check(path, &mut nodes).map_err(|error| error.to_string())?;
        Ok(nodes)
    }

    #[test]
    fn only_what_containers_can_be_given_is_offered() {
        let nodes = checked(&node("pc", "{timeSlicing: {replicas: 4}}")).unwrap();
        assert!(nodes[0].enforces.unwrap().devices);
        assert!(checked("  []\n").unwrap().is_empty());
        let two = node("a", "exclusive") + &node("b", "exclusive");
        assert!(checked(&two).unwrap_err().contains("hosts.yaml: it has 2 nodes"));
        let mig = checked(&node("a", "{mig: {instances: {1g.10gb: 7}}}")).unwrap_err();
        assert!(mig.contains("use exclusive or timeSlicing"), "{mig}");
    }
}
