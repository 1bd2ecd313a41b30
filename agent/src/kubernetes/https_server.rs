//! HTTPS servers of this agent that the cluster's API server calls: the admission webhook and the API of pods' metrics.
//!
//! What they share is here: certificates of the agent's own making, the port, connections with bounds in number and
//! time.

mod certificates;
mod serve;

pub(crate) use certificates::{Certificates, LIFE, make as make_certificates, server_config};
pub(crate) use serve::{Called, listen, serve};
