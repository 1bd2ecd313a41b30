//! Virtual functions, by which a node lends RDMA bandwidth. One pod at a time uses each.

use crate::model::inventory::NodeWiring;
use crate::model::inventory::wiring::RdmaFunctions;
use crate::model::limits::MAX_RESOURCE_NAME_BYTES;
use crate::model::refusal::Refusal;

impl NodeWiring {
    /// Gbit/s of one virtual function of `network`; `None` if the node does not lend the network by functions.
    #[must_use]
    pub fn gbits_each(&self, network: &str) -> Option<u32> {
        let count = self.rdma_functions.get(network)?.count;
        self.rdma_gbits.get(network)?.checked_div(count).filter(|each| *each > 0)
    }

    /// Each function must belong to a network of the node, carry whole Gbit/s, and be counted once.
    pub(crate) fn check_functions(&self, field: &str) -> Result<(), Refusal> {
        let of_network = |network: &str, part: &str| format!("{field}.rdma[{network}].{part}");
        let mut resources: Vec<&str> = Vec::new();
        for (network, functions) in &self.rdma_functions {
            let RdmaFunctions { resource, count, local } = functions;
            let Some(gbits) = self.rdma_gbits.get(network) else {
                let field = of_network(network, "functions");
                return Err(Refusal::invalid(&field, count, "are of a network without bandwidth", "say its Gbit/s"));
            };
            if *count == 0 || !gbits.is_multiple_of(*count) {
                let problem = format!("do not carry {gbits} Gbit/s in equal whole parts");
                let remedy = "use a bandwidth that is a multiple of the number of functions";
                return Err(Refusal::invalid(&of_network(network, "functions"), count, &problem, remedy));
            }
            if local > count {
                let problem = format!("are more than the {count} functions that it has");
                let remedy = "count only functions that pods can have";
                return Err(Refusal::invalid(&of_network(network, "local_functions"), local, &problem, remedy));
            }
            let is_name = !resource.is_empty()
                && resource.len() <= MAX_RESOURCE_NAME_BYTES
                && resource.chars().all(|c| c.is_ascii_graphic());
            if !is_name {
                let remedy = "use the name that pods ask for, as in nvidia.com/ib_vf";
                return Err(Refusal::invalid(&of_network(network, "resource"), resource, "is not a resource", remedy));
            }
            if resources.contains(&resource.as_str()) {
                let remedy = "name for each network the functions that are its own";
                let problem = "counts the functions of two networks";
                return Err(Refusal::invalid(&of_network(network, "resource"), resource, problem, remedy));
            }
            resources.push(resource);
        }
        Ok(())
    }
}
