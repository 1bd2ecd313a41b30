//! HTTPS servers that the cluster's API server calls: the admission webhook and the API of pods' metrics. They share
//! certificates of a CA without a key, and bounds on the number and life of connections.

mod certificates;
mod serve;

pub use certificates::{
    Certificates, LIFE, end_of as end_of_certificates, make as make_certificates, server_config,
    verify as verify_certificates,
};
pub use serve::{HttpsService, listen, serve};
