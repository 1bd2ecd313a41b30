//! The procedures of `comity.v1`, by their HTTP path.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use comity_proto::FILE_DESCRIPTOR_SET;
use prost_reflect::{DescriptorPool, MethodDescriptor};

/// The public package: brokers' calls to each other have a port of their own.
const PACKAGE: &str = "comity.v1";

static PROCEDURES: LazyLock<Procedures> = LazyLock::new(|| {
    // Built from the same descriptors as the services.
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("descriptors compiled by protox");
    Procedures::of(pool)
});

/// All procedures.
#[derive(Debug)]
pub struct Procedures {
    pool: DescriptorPool,
    by_path: BTreeMap<String, MethodDescriptor>,
}

/// How a procedure is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One message each way.
    Unary,
    /// One message, answered by events.
    Events,
    /// The client streams, which only gRPC can.
    GrpcOnly,
}

impl Procedures {
    /// Those of this release.
    #[must_use]
    pub fn all() -> &'static Self {
        &PROCEDURES
    }

    fn of(pool: DescriptorPool) -> Self {
        let services = pool.services().filter(|service| service.package_name() == PACKAGE);
        let methods = services.flat_map(|service| service.methods().collect::<Vec<_>>());
        let by_path = methods.map(|method| (path(&method), method)).collect();
        Self { pool, by_path }
    }

    /// The procedure at a path.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<&MethodDescriptor> {
        self.by_path.get(path)
    }

    /// Every procedure with its path, in the order of paths.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &MethodDescriptor)> {
        self.by_path.iter().map(|(path, method)| (path.as_str(), method))
    }

    /// The types of their messages.
    #[must_use]
    pub fn pool(&self) -> &DescriptorPool {
        &self.pool
    }
}

impl Shape {
    /// Of a procedure.
    #[must_use]
    pub fn of(method: &MethodDescriptor) -> Self {
        match (method.is_client_streaming(), method.is_server_streaming()) {
            (true, _) => Self::GrpcOnly,
            (false, true) => Self::Events,
            (false, false) => Self::Unary,
        }
    }
}

/// Beginnings of the names of procedures that change nothing.
const READS: [&str; 8] = ["Get", "List", "Explain", "Quote", "CheckJoin", "CheckPolicy", "PlanPolicy", "WhoAmI"];

/// Whether the call at a path is a procedure that changes nothing and ends with its answer.
#[must_use]
pub fn is_read(path: &str) -> bool {
    let name = path.strip_prefix("/comity.v1.").and_then(|path| path.split_once('/')).map(|(_, name)| name);
    // By name alone: looking each call up would cost more.
    name.is_some_and(|name| READS.iter().any(|read| name.starts_with(read)))
}

fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_agents_procedures_are_served_and_brokers_are_not() {
        let shape = |path: &str| Procedures::all().find(path).map(Shape::of);
        assert_eq!(shape("/comity.v1.LeaseService/GetLease"), Some(Shape::Unary));
        assert_eq!(shape("/comity.v1.WatchService/Watch"), Some(Shape::Events));
        assert_eq!(shape("/comity.v1.AgentService/Connect"), Some(Shape::GrpcOnly));
        assert_eq!(shape("/comity.v1.LeaseService/GetLeases"), None);
        let raft = FILE_DESCRIPTOR_SET.windows(14).any(|bytes| bytes == b"comity.raft.v1");
        assert!(!raft && Procedures::all().iter().all(|(path, _)| path.starts_with("/comity.v1.")));
    }

    #[test]
    fn reads_are_told_from_commands_and_streams() {
        let others: Vec<&str> =
            Procedures::all().iter().filter(|(path, _)| !is_read(path)).map(|(_, method)| method.name()).collect();
        let writes = |name: &str| {
            ["Apply", "Cancel", "Change", "Checkpoint", "Evict", "Invite", "Join", "Rebase", "Release", "Renew"]
                .iter()
                .chain(&["Remove", "Resume", "Revoke", "Set", "Submit", "Suspend"])
                .any(|write| name.starts_with(write))
        };
        let strange: Vec<&str> =
            others.into_iter().filter(|name| !writes(name) && !["Connect", "Watch"].contains(name)).collect();
        assert_eq!(strange, Vec::<&str>::new(), "is each of these a read?");
        assert!(is_read("/comity.v1.OfferService/ListOffers") && !is_read("/grpc.health.v1.Health/Check"));
        assert!(!is_read("/comity.v1.LeaseService/CheckpointLease"), "it changes the lease");
    }
}
